"""The client of a latency point: vLLM's own benchmark client, sent token ids.

`vllm bench serve` makes its prompts as text. What it calls, `vllm.benchmarks.serve.benchmark`, sends a list of token ids
as it is, and vLLM's completions endpoint takes it. So the time to first token holds no tokenizing, as in Appendix B.2, and
arrivals, requests and statistics are vLLM's. The arguments given here are all in vLLM 0.26 to 0.32.

`python -m swiftkv.measure.client SOCKET` runs it; a job has the arguments of `measure_rate`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import secrets
import sys
import urllib.request
from collections.abc import Sequence
from typing import Any

from swiftkv.data.workload import FIELDS
from swiftkv.errors import UserError
from swiftkv.measure.prompts import chat_prompts, random_prompts
from swiftkv.measure.worker import answer

STATISTICS = ("mean", "median", "p99")
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


def measure_rate(
    *,
    url: str,
    name: str,
    folder: str,
    prompts: dict[str, Any],
    requests: int,
    rate: float,
    seed: int,
    goodput: dict[str, float] | None = None,
    concurrency: int | None = None,
) -> dict[str, Any]:
    """Send requests to a server; greedy decoding, one request to warm up.

    Random prompts have one length and their outputs another, end of sequence or not; arrivals are Poisson. Chats end
    where the model ends them: forced on, a model repeats itself, and n-gram speculation would look better than it is. A
    workload's requests have their recorded lengths, and their recorded gaps, all stretched alike to the asked rate.

    Args:
        url: of the server, which knows the model as `name`.
        folder: the model, with its tokenizer.
        prompts: what is sent. `kind` random: ids below `vocabulary`; chats: openings from `file`, in turn; both of (at
            most) `input_tokens`, and answered with `output_tokens`. `kind` workload: see `workload_requests`.
        rate: requests a second.
        goodput: milliseconds that ttft, tpot or e2el of a request may take for it to count as good.
        concurrency: requests under way at most; with an infinite rate, always so many until the last ones end.

    Returns:
        request_rate (in a closed loop: concurrency), requests, completed, failed, achieved_request_rate,
        tokens_per_second, input_tokens, output_tokens, seconds (from the first arrival to the last token), ttft_ms, tpot_ms,
        itl_ms and e2e_ms (each with mean, median, p99), error (of the first failed request, or None); with speculation
        acceptance_rate (percent) and acceptance_length; with `goodput` good (requests within the limits), goodput (those
        a second) and cached_share (of prompt tokens, found in the prefix cache; None where the server does not say).
    """
    import numpy as np
    from transformers import AutoTokenizer
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = prompts["kind"]
    if kind == "workload":
        samples = workload_requests(requests, seed, rate, tokenizer, prompts["file"], prompts["chunk_tokens"])
    else:
        length = prompts["input_tokens"]
        if kind == "chats":  # as often as it takes
            ids = itertools.islice(itertools.cycle(chat_prompts(folder, prompts["file"], length, seed)), requests)
        else:
            ids = random_prompts(requests, length, prompts["vocabulary"], seed)

        def sample(prompt: Any) -> SampleRequest:  # vLLM 0.26 and 0.27 take token ids too, and do not say so
            return SampleRequest(prompt=prompt, prompt_len=len(prompt), expected_output_len=prompts["output_tokens"])

        samples = [sample(prompt) for prompt in ids]
    random.seed(seed)
    np.random.seed(seed)  # arrivals are drawn from it

    def send(samples: list[Any], rate: float, *, salt: str | None = None, recorded: bool = False) -> dict[str, Any]:
        return asyncio.run(
            benchmark(
                task_type=TaskType.GENERATION,
                endpoint_type="openai",
                api_url=f"{url}/v1/completions",
                base_url=url,
                model_id=folder,
                model_name=name,
                tokenizer=tokenizer,  # vLLM 0.26 reports no latencies without one
                input_requests=samples,
                logprobs=None,
                request_rate=rate,
                burstiness=1.0,  # Poisson
                self_timed=recorded,  # arrivals as the samples say
                disable_tqdm=True,
                num_warmups=0 if salt else 1,
                ready_check_timeout_sec=0 if salt else 600,
                profile=False,
                selected_percentile_metrics=list(_METRICS.values()),
                selected_percentiles=[99.0],
                ignore_eos=kind != "chats",
                goodput_config_dict=goodput or {},
                max_concurrency=concurrency,
                lora_modules=None,
                extra_headers=None,
                extra_body={"temperature": 0.0} | ({"cache_salt": salt} if salt else {}),
            )
        )

    if concurrency:
        result = rate_result(send(samples, rate), rate, requests)
        return {"concurrency": concurrency} | {key: value for key, value in result.items() if key != "request_rate"}
    if kind != "workload":
        return rate_result(send(samples, rate), rate, requests)
    # Salts keep what was sent before, the warm-up too, from being found in the prefix cache.
    send(samples[:1], float("inf"), salt=secrets.token_hex(8))
    before = prefix_cache(url)
    report = send(samples, rate, salt=secrets.token_hex(8), recorded=True)
    return rate_result(report, rate, requests) | {"cached_share": _share(before, prefix_cache(url))}


def workload_requests(count: int, seed: int, rate: float, tokenizer: Any, file: str, chunk_tokens: int) -> list[Any]:
    """The first `count` requests of a workload, arriving at `rate` requests a second in the mean.

    Args:
        file: what `data.workload.write_workload` wrote; read, and made prompts of random ids, by vLLM.
        chunk_tokens: tokens of a prompt that one of its ids stands for.

    Raises:
        UserError: there are fewer, or all arrive at once.
    """
    from vllm.benchmarks.datasets.datasets import TimedTrace

    labels = {f"timed_trace_label_{field}": field for field in FIELDS}
    trace = TimedTrace(dataset_path=file, random_seed=seed, timed_trace_chunk_hash_size=chunk_tokens, **labels)
    samples = trace.sample(tokenizer, count)
    if len(samples) < count:
        raise UserError(
            f"{file} has {len(samples)} requests, but {rate:g} a second take {count}; ask for fewer seconds"
        )
    first, last = samples[0].timestamp, samples[-1].timestamp
    if count > 1 and last <= first:
        raise UserError(f"the first {count} requests of {file} arrive all at once, which no rate can be made of")
    stretch = (count - 1) / rate / (last - first) if count > 1 else 1.0
    for sample in samples:
        sample.timestamp = (sample.timestamp - first) * stretch
    return samples


def prefix_cache(url: str) -> tuple[float, float] | None:
    """Prompt tokens that a server has looked up in its prefix cache, and those found; None if it does not say."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/metrics", timeout=10) as metrics:
            text = metrics.read().decode()
    except OSError:
        return None
    counts = dict(re.findall(r"^vllm:prefix_cache_(queries|hits)_total(?:{.*})? (\S+)$", text, re.MULTILINE))
    return (float(counts["queries"]), float(counts["hits"])) if len(counts) == 2 else None


def _share(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    if before is None or after is None or after[0] <= before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def rate_result(report: dict[str, Any], rate: float, requests: int) -> dict[str, Any]:
    """The numbers of vLLM's report, as `measure_rate` returns them."""
    result = {
        "request_rate": rate,
        "requests": requests,
        "completed": int(report["completed"]),
        "failed": int(report.get("failed", requests - report["completed"])),
        "achieved_request_rate": float(report["request_throughput"]),
        "tokens_per_second": float(report["total_token_throughput"]),
        "input_tokens": int(report["total_input_tokens"]),
        "output_tokens": int(report["total_output_tokens"]),
        "seconds": float(report["duration"]),
    }
    for ours, theirs in _METRICS.items():
        result[f"{ours}_ms"] = {statistic: float(report[f"{statistic}_{theirs}_ms"]) for statistic in STATISTICS}
    if "spec_decode_acceptance_rate" in report:
        result["acceptance_rate"] = float(report["spec_decode_acceptance_rate"])
        result["acceptance_length"] = float(report["spec_decode_acceptance_length"])
    if report.get("request_goodput") is not None:
        result["goodput"] = float(report["request_goodput"])
        result["good"] = round(result["goodput"] * result["seconds"])
    result["error"] = next(filter(None, report.get("errors", [])), None)
    return result


def main(arguments: Sequence[str]) -> None:
    """Import what takes long, then answer."""
    import transformers  # noqa: F401
    import vllm.benchmarks.serve  # noqa: F401

    (address,) = arguments
    answer(address, lambda job: measure_rate(**job))


if __name__ == "__main__":
    main(sys.argv[1:])
