"""Prompts as token ids, and the client of a latency point: vLLM's own benchmark client, sent such prompts.

`vllm bench serve` makes its prompts as text. What it calls, `vllm.benchmarks.serve.benchmark`, sends a list of token ids
as it is, and vLLM's completions endpoint takes it. So the time to first token holds no tokenizing, as in Appendix B.2, and
arrivals, requests and statistics are vLLM's. The arguments given here are all in vLLM 0.26 to 0.32.

`python -m pipeline.measure.client SOCKET` runs it; a job has the arguments of `measure_rate`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.measure.worker import answer
from swiftkv.chats import Refusals, choose_chats, render
from swiftkv.errors import UserError

STATISTICS = ("mean", "median", "p99")
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
# Special tokens stand at either end of a vocabulary: Llama-2's and SmolLM's first, Llama-3's last.
MARGIN = 1000


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids below `vocabulary`, without those at either end of it."""
    margin = min(MARGIN, vocabulary // 4)
    source = random.Random(seed)
    ids = range(margin, vocabulary - margin)
    return [source.choices(ids, k=length) for _ in range(count)]


def chat_prompts(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[list[int]]:
    """The ids of `chat_openings`."""
    return [ids for _, ids in chat_openings(folder, heldout, longest, seed)]


def chat_openings(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[tuple[str, list[int]]]:
    """Opening user messages of all chats that fit into `longest` tokens, and their ids through the chat template, in drawn order.

    Args:
        folder: the model, with its tokenizer.
        heldout: chats, as `data.read.read_chats` reads them.

    Raises:
        UserError: no chat is that short, or the chat template refuses more than 1 % of them.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts, chats, refusals = [], choose_chats(heldout, 10**9, seed), Refusals()
    for chat in chats:
        if chat["messages"][0]["role"] == "user":
            try:
                ids = opening(tokenizer, chat["messages"][0])
            except UserError as error:
                refusals.add(f"chat {chat.get('id')}: {error}")
                continue
            if len(ids) <= longest:
                prompts.append((chat["messages"][0]["content"], ids))
    refusals.check(len(chats))
    if not prompts:
        raise UserError(f"{heldout} has no chat whose opening fits into {longest} tokens")
    return prompts


def opening(tokenizer: Any, message: dict[str, str]) -> list[int]:
    """Token ids of a chat that begins with `message` and waits for the answer."""
    return list(render(tokenizer, [message], add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])


def measure_rate(
    *,
    url: str,
    name: str,
    folder: str,
    prompts: dict[str, Any],
    requests: int,
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """Send requests to a server; greedy decoding, one request to warm up.

    Random prompts have one length and their outputs another, end of sequence or not; arrivals are Poisson. Chats end
    where the model ends them: forced on, a model repeats itself, and n-gram speculation would look better than it is.

    Args:
        url: of the server, which knows the model as `name`.
        folder: the model, with its tokenizer.
        prompts: what is sent. `kind` random: ids below `vocabulary`; chats: openings from `file`, in turn; both of (at
            most) `input_tokens`, and answered with `output_tokens`.
        rate: requests a second.

    Returns:
        request_rate, requests, completed, failed, achieved_request_rate, tokens_per_second, input_tokens, output_tokens,
        seconds (from the first arrival to the last token), ttft_ms, tpot_ms, itl_ms and e2e_ms (each with mean, median, p99),
        error (of the first failed request, or None); with speculation acceptance_rate (percent) and acceptance_length.
    """
    import numpy as np
    from transformers import AutoTokenizer
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind, length = prompts["kind"], prompts["input_tokens"]
    if kind == "chats":  # as often as it takes
        ids = itertools.islice(itertools.cycle(chat_prompts(folder, prompts["file"], length, seed)), requests)
    else:
        ids = random_prompts(requests, length, prompts["vocabulary"], seed)

    def sample(prompt: Any) -> SampleRequest:  # vLLM 0.26 and 0.27 take token ids too, and do not say so
        return SampleRequest(prompt=prompt, prompt_len=len(prompt), expected_output_len=prompts["output_tokens"])

    samples = [sample(prompt) for prompt in ids]
    random.seed(seed)
    np.random.seed(seed)  # arrivals are drawn from it

    report = asyncio.run(
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
            disable_tqdm=True,
            num_warmups=1,
            ready_check_timeout_sec=600,
            profile=False,
            selected_percentile_metrics=list(_METRICS.values()),
            selected_percentiles=[99.0],
            ignore_eos=kind != "chats",
            goodput_config_dict={},
            max_concurrency=None,
            lora_modules=None,
            extra_headers=None,
            extra_body={"temperature": 0.0},
        )
    )
    return rate_result(report, rate, requests)


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
