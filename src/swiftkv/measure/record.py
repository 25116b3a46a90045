"""The measurement file of one serving point, whatever its kind."""

from __future__ import annotations

from typing import Any

from swiftkv.cost import kv_bytes_per_token, prefill_flops, request_flops
from swiftkv.measure.point import Point, Subject
from swiftkv.records import provenance


def record(
    subject: Subject,
    point: Point,
    *,
    settings: dict[str, Any],
    engine: dict[str, Any],
    cost: dict[str, Any],
    result: dict[str, Any] | None,
    reason: str | None,
    seconds: float,
) -> dict[str, Any]:
    """Everything known about one point.

    Args:
        settings: of this kind of point, added to those all share.
        engine: what vLLM ran, from `engine.observed`.
        cost: from `request_cost` or `cache_cost`.
        result: the numbers; None if the model did not fit into the memory.
        reason: why there are none; None if there are.
        seconds: wall time of the whole measurement, in seconds.
    """
    return {
        "measure": point["measure"],
        "point": point.name,
        "model": subject.model,
        "title": subject.title,
        "variant": subject.variant,
        "kv_cache": subject.kv_cache,
        "weights": subject.weights,
        "spec": subject.spec,
        "merge_all_layers": subject.merge_all_layers,
        "status": "ok" if reason is None else "oom",
        "reason": reason,
        "settings": {
            "max_num_batched_tokens": point.engine["max_num_batched_tokens"],
            "enforce_eager": point.engine["enforce_eager"],
            "tensor_parallel_size": point.tensor_parallel_size,
            "memory_gib": point.get("memory_gib"),
            "dtype": point.engine["dtype"],
            "quantization": subject.quantization,
            "seed": point["seed"],
            "threads": point.threads,
            "speculative": point.get("speculative"),
            **settings,
        },
        "engine": engine,
        "cost": cost,
        "result": result,
        **provenance(seconds),
    }


def request_cost(subject: Subject, prompt: int, output: int) -> dict[str, float]:
    """The baseline's FLOPs for each processed token of such requests, and how much faster the variant can be at most."""
    arch, spec = subject.architecture, subject.swiftkv_spec
    baseline = sum(request_flops(arch, None, prompt, output).values())
    return {
        "baseline_flops_per_token": baseline / (prompt + output),
        "request_speedup_limit": baseline / sum(request_flops(arch, spec, prompt, output).values()),
        "prefill_speedup_limit": sum(prefill_flops(arch, None, prompt).values())
        / sum(prefill_flops(arch, spec, prompt).values()),
    }


def cache_cost(subject: Subject) -> dict[str, float]:
    """Bytes of cache for each token, and the capacity limit relative to the baseline with a 16-bit cache."""
    arch = subject.architecture
    dtype = "fp8" if subject.kv_cache == "fp8" else "bfloat16"
    size = kv_bytes_per_token(arch, subject.swiftkv_spec, dtype)
    if subject.merge_all_layers:
        size //= arch.num_hidden_layers
    return {"kv_bytes_per_token": size, "capacity_limit": kv_bytes_per_token(arch, None) / size}
