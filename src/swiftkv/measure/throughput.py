"""Batch throughput: all requests at once, with `vllm bench throughput` (Fig. 3, Table 5; Appendix B.2)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from swiftkv.measure.engine import OutOfMemory, failure, observed
from swiftkv.measure.point import Point, Subject, engine_arguments, engine_environment, max_model_len, printable, vllm
from swiftkv.measure.process import running
from swiftkv.measure.record import record, request_cost
from swiftkv.records import read_json


def number_of_prompts(total_tokens: int, prompt: int, output: int) -> int:
    """Requests whose input and output tokens together are about `total_tokens`; at least one."""
    return max(1, round(total_tokens / (prompt + output)))


def throughput_command(subject: Subject, point: Point, output: Path) -> list[str]:
    """`vllm bench throughput` for one point: random prompts of one length, outputs of one length.

    Raises:
        OutOfMemory: the weights alone exceed the stated limit.
    """
    prompt, generated = point["input_tokens"], point["output_tokens"]
    length = max_model_len(subject.config, prompt, generated)
    return vllm(
        *("bench", "throughput", "--model", str(subject.folder)),
        *("--dataset-name", "random", "--random-range-ratio", "0"),
        *("--random-input-len", str(prompt), "--random-output-len", str(generated)),
        *("--num-prompts", str(number_of_prompts(point["total_tokens"], prompt, generated))),
        *("--num-warmups", str(point.get("warmups", 1)), "--disable-detokenize", "--output-json", str(output)),
        *engine_arguments(subject, point, length, point.budget(subject)),
    )


def measure_throughput(subject: Subject, point: Point, work: Path) -> dict[str, Any]:
    """The record of one throughput point.

    Args:
        work: folder for vLLM's log and result.

    Raises:
        EngineFailure: vLLM failed for another reason than memory.
    """
    started = time.monotonic()
    prompt, generated = point["input_tokens"], point["output_tokens"]
    report, log, command, reason, result = work / "throughput.json", work / "vllm.log", [], None, None
    work.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    sentence = None
    try:
        sentence = point.budget(subject).sentence
        command = throughput_command(subject, point, report)
        with running(command, log, engine_environment(point)) as job:
            if status := job.wait():
                raise failure("vllm bench throughput", status, job.text(), job.log)
    except OutOfMemory as error:
        reason = str(error)
    text = log.read_text(errors="replace") if log.exists() else ""
    cost = request_cost(subject, prompt, generated)
    if reason is None:
        result = throughput_result(read_json(report), generated, cost["baseline_flops_per_token"], point)
    return record(
        subject,
        point,
        settings={
            "input_tokens": prompt,
            "output_tokens": generated,
            "num_prompts": number_of_prompts(point["total_tokens"], prompt, generated),
            "total_tokens": point["total_tokens"],
            "memory": sentence,
            "command": printable(command, {str(subject.folder): "MODEL", str(work): "WORK"}) if command else None,
        },
        engine=observed(text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None),
        cost=cost,
        result=result,
        reason=reason,
        seconds=time.monotonic() - started,
    )


def throughput_result(report: dict[str, Any], output: int, flops_per_token: float, point: Point) -> dict[str, Any]:
    """The numbers of vLLM's report, and the normalized TFLOP/s for each GPU (baseline FLOPs, paper's footnote 2)."""
    seconds, requests = report["elapsed_time"], report["num_requests"]
    rate = report["total_num_tokens"] / seconds
    return {
        "tokens_per_second": rate,
        "output_tokens_per_second": requests * output / seconds,
        "requests_per_second": requests / seconds,
        "seconds": seconds,
        "num_prompts": requests,
        "tokens": report["total_num_tokens"],
        "normalized_tflops_per_gpu": rate * flops_per_token / point.tensor_parallel_size / 1e12,
    }
