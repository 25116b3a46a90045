"""Batch throughput: all requests at once, as token ids (Fig. 3, Table 5; Appendix B.2)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from pipeline.config.points import Throughput
from pipeline.measure.kind import (
    OWN,
    Kind,
    Numbers,
    Run,
    engine_command,
    engines,
    in_turns,
    repeats,
    requested,
    samples,
)
from pipeline.measure.point import Point
from pipeline.records import hardware
from swiftkv.cost import Dimensions, parameter_count, request_flops

# The GPUs whose utilization is stated, by CUDA's name, and their dense TFLOP/s by quantization, as their data sheets have them;
# of Hopper SXM boards, as PCIe and NVL ones have other clocks.
_PEAKS: Mapping[str, Mapping[str | None, float]] = {
    r"NVIDIA (H100 80GB HBM3|H200|H800)": {None: 989.4, "fp8": 1978.9},
    r"NVIDIA A100[- ](?!.*MIG).*": {None: 312.0},
}


def number_of_prompts(point: Point[Throughput]) -> int:
    """Requests whose input and output tokens together are about `total_tokens`; at least one."""
    return max(1, round(point.settings.total_tokens / sum(requested(point))))


def warm_up(point: Point[Throughput]) -> dict[str, Any]:
    """The job before the clock starts: one request of at most one full step of prompt."""
    prompt, output = requested(point)
    chunk = point.engine["max_num_batched_tokens"]
    job = {"do": "throughput", "prompts": point.settings.warmups, "seed": point.seed + 1}
    return job | {"input": min(prompt, chunk), "output": min(output, 8)}


def settings(point: Point[Throughput]) -> dict[str, Any]:
    """What was asked for."""
    prompt, output = requested(point)
    return {
        "input_tokens": prompt,
        "output_tokens": output,
        "num_prompts": number_of_prompts(point),
        "total_tokens": point.settings.total_tokens,
        "warmups": point.settings.warmups,
        "repeats": point.settings.repeats,
        "prompts": "token ids",
    }


def numbers(run: Run[Throughput], command: list[str]) -> Numbers:
    """Warm up, then send all requests, as often as asked; the speed is that of the median time."""
    point, subject = run.point, run.subject
    (prompt, output), warm = requested(point), warm_up(point)
    job = {"do": "throughput", "prompts": number_of_prompts(point), "seed": point.seed}
    job |= {"input": prompt, "output": output}
    with engines(run, command) as sides:
        answers = in_turns(sides, job, repeats(point, run.subject.variant), warm if warm["prompts"] else None)
    seconds = {side: [answer["seconds"] for answer in found] for side, found in answers.items()}
    gpus = hardware()["gpus"] if point.gpus else []
    peak = peak_tflops(gpus[0], point.dtype, subject.quantization) if gpus else None
    return throughput_result(point, subject.config, statistics.median(seconds[OWN]), peak) | samples(seconds, "seconds")


def throughput_result(
    point: Point[Throughput], config: Mapping[str, Any], seconds: float, peak: float | None
) -> Numbers:
    """The result of all requests of a point in so many seconds.

    Normalized TFLOP/s are those of the unchanged model for the same tokens (paper's footnote 2), on any variant:
    `normalized_tflops_per_gpu` counts as the paper does, 2 FLOPs a parameter and token; `exact_tflops_per_gpu` counts what
    such a request needs, with attention. `mfu_percent` is the former's share of the GPU's dense peak.

    Args:
        config: config.json of the model.
        peak: dense TFLOP/s of a GPU; None where that is not known.
    """
    (prompt, output), prompts = requested(point), number_of_prompts(point)
    tokens, devices = prompts * (prompt + output), point.tensor_parallel_size
    rate = tokens / seconds
    flops = sum(request_flops(Dimensions.from_config(config), None, prompt, output).values()) / (prompt + output)
    normalized = rate * 2 * parameter_count(config) / devices / 1e12
    return {
        "tokens_per_second": rate,
        "tokens_per_second_per_gpu": rate / devices,
        "output_tokens_per_second": prompts * output / seconds,
        "requests_per_second": prompts / seconds,
        "seconds": seconds,
        "num_prompts": prompts,
        "tokens": tokens,
        "normalized_tflops_per_gpu": normalized,
        "exact_tflops_per_gpu": rate * flops / devices / 1e12,
        "mfu_percent": None if peak is None else 100 * normalized / peak,
    }


def peak_tflops(gpu: str, dtype: str, quantization: str | None) -> float | None:
    """Dense TFLOP/s of a GPU, named as by CUDA, in the number format that is served; None where one is not known."""
    if quantization is None and dtype not in ("bfloat16", "float16"):
        return None
    peaks = next((peaks for names, peaks in _PEAKS.items() if re.fullmatch(names, gpu)), {})
    return peaks.get(quantization)


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=engine_command(requested),
    numbers=numbers,
    headline=lambda result: f"{result['tokens_per_second']:.1f} tokens/s",
)
