"""vLLM's own benchmark client, sent prompts of token ids.

`vllm bench serve` makes its prompts as text. What it calls, `vllm.benchmarks.serve.benchmark`, sends a list of token ids
as it is, and vLLM's completions endpoint takes it. So the time to first token holds no tokenizing, as in Appendix B.2, and
arrivals, requests and statistics are vLLM's. The arguments given here are all in vLLM 0.26 to 0.32.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.log import EngineFailure
from pipeline.prompts import plain_tokenizer

_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


def measure_rate(
    url: str, name: str, folder: Path, prompts: Sequence[list[int]], output: int, rate: float, seed: int, forced: bool
) -> dict[str, Any]:
    """Send requests to a server, with Poisson arrivals; greedy decoding, one request to warm up.

    Args:
        url: of the server, which knows the model as `name`.
        folder: the model, with its tokenizer.
        prompts: token ids of each request.
        output: tokens of each answer at most.
        rate: requests a second.
        seed: of the arrivals.
        forced: whether every answer has so many tokens, end of sequence or not.

    Returns:
        request_rate, requests, completed, failed, achieved_request_rate, tokens_per_second, input_tokens, output_tokens,
        seconds (from the first arrival to the last token), ttft_ms, tpot_ms, itl_ms and e2e_ms (each with mean, median, p99);
        with speculation acceptance_rate (percent) and acceptance_length.

    Raises:
        EngineFailure: no request succeeded.
    """
    import numpy as np
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark

    def sample(prompt: Any) -> SampleRequest:  # vLLM 0.26 and 0.27 take token ids too, and do not say so
        return SampleRequest(prompt=prompt, prompt_len=len(prompt), expected_output_len=output)

    random.seed(seed)
    np.random.seed(seed)  # arrivals are drawn from it

    report = asyncio.run(
        benchmark(
            task_type=TaskType.GENERATION,
            endpoint_type="openai",
            api_url=f"{url}/v1/completions",
            base_url=url,
            model_id=str(folder),
            model_name=name,
            tokenizer=plain_tokenizer(folder),  # vLLM 0.26 reports no latencies without one
            input_requests=list(map(sample, prompts)),
            logprobs=None,
            request_rate=rate,
            burstiness=1.0,  # Poisson
            disable_tqdm=True,
            num_warmups=1,
            ready_check_timeout_sec=0,
            profile=False,
            selected_percentile_metrics=list(_METRICS.values()),
            selected_percentiles=[99.0],
            ignore_eos=forced,
            goodput_config_dict={},
            max_concurrency=None,
            lora_modules=None,
            extra_headers=None,
            extra_body={"temperature": 0.0},
        )
    )
    return rate_result(report, rate, len(prompts))


def rate_result(report: dict[str, Any], rate: float, requests: int) -> dict[str, Any]:
    """The numbers of vLLM's report, as `measure_rate` returns them."""
    if not report["completed"]:
        error = " ".join(filter(None, report["errors"])).strip().splitlines()[-1:]
        raise EngineFailure(f"not one request succeeded at {rate:g} requests a second: {''.join(error)}")
    result = {
        "request_rate": rate,
        "requests": requests,
        "completed": report["completed"],
        "failed": requests - report["completed"],
        "achieved_request_rate": report["request_throughput"],
        "tokens_per_second": report["total_token_throughput"],
        "input_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "seconds": report["duration"],
    }
    for ours, theirs in _METRICS.items():  # numpy's numbers, which JSON does not have
        result[f"{ours}_ms"] = {
            statistic: float(report[f"{statistic}_{theirs}_ms"]) for statistic in ("mean", "median", "p99")
        }
    if "spec_decode_acceptance_rate" in report:
        result["acceptance_rate"] = report["spec_decode_acceptance_rate"]
        result["acceptance_length"] = report["spec_decode_acceptance_length"]
    return result
