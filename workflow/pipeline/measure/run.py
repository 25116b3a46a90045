"""One serving measurement, whatever its kind: memory, command, failures and the record."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.measure import answer, capacity, latency, memory, steps, throughput
from pipeline.measure.engine import OutOfMemory, Unsupported, observed, require_fp8_cache
from pipeline.measure.engines import Engines
from pipeline.measure.kind import Kind, Run
from pipeline.measure.point import Point, Subject, printable, speculation
from pipeline.measure.reference import REFERENCE, VERSIONS, refuse_unless_installed
from pipeline.records import describe_spec, measurement, weights_of
from swiftkv.architectures import check_served
from swiftkv.cost import kv_bytes_per_token, request_flops, speedup_limits

KINDS: dict[str, Kind] = {
    "throughput": throughput.KIND,
    "latency": latency.KIND,
    "forward_time": steps.FORWARD,
    "kv_capacity": capacity.KIND,
    "decode": steps.DECODE,
    "answer": answer.KIND,
}


def measure(
    subject: Subject,
    point: Point,
    work: Path,
    heldout: Path | None = None,
    *,
    engines: Engines,
    longest: int = 0,
) -> dict[str, Any]:
    """The record of one point, as `records.measurement` gives it, with `engine` and `cost`.

    Too little memory is a record too, with status "oom", and so is what vLLM cannot do on this processor: "unavailable".

    Args:
        work: folder for what is finished, so that a killed measurement goes on; whoever keeps the record removes it.
        heldout: chats to send, for points with `dataset`.
        engines: those of the job.
        longest: as in `Run`.

    Raises:
        UserError: the point cannot be measured on this model or in this environment; said before vLLM starts.
        EngineFailure: vLLM failed for another reason than memory, or for memory that other processes hold.
    """
    started, kind = time.monotonic(), KINDS[point.settings.measure]
    if subject.spec is not None:
        check_served(subject.config["model_type"])
    plugin = "swiftkv"
    if subject.plugin == REFERENCE:
        refuse_unless_installed(subject.spec, subject.variant)
        plugin = f"{REFERENCE} {VERSIONS[REFERENCE]}"
    spec = describe_spec(subject.spec, subject.architecture.num_key_value_heads)
    costs = cost(subject, *kind.lengths(point))
    work.mkdir(parents=True, exist_ok=True)
    budget = command = result = reason = None
    status = "ok"
    try:
        if subject.kv_cache == "fp8" and not point.gpus:
            require_fp8_cache()
        budget = point.budget(subject)
        run = Run(subject, point, work, budget, engines, kind.single, longest, heldout=heldout)
        command = kind.command(run)
        if subject.baseline is not None and point.in_turns:
            with contextlib.suppress(OutOfMemory):  # then there is nothing to compare with
                other = replace(run, subject=subject.baseline, budget=point.budget(subject.baseline))
                run = replace(run, baseline=kind.command(other))
        result = _numbers(kind, run, command)
    except Unsupported as error:
        status, reason = "unavailable", str(error)
    except OutOfMemory as error:
        status = "oom"
        if point.gpus:
            memory.refuse_neighbors(budget.arguments["--gpu-memory-utilization"], memory.devices()[: point.gpus])
        reason = str(error)
    if kind.seen and result:
        costs = cost(subject, *kind.seen(point, result))
    engine = observed(engines.text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None)
    return measurement(
        point.settings.measure,
        model=subject.identity,
        variant=subject.variant,
        kv_cache=subject.kv_cache,
        **(weights_of(subject.folder) if subject.weights == "trained" else {"weights": subject.weights}),
        spec=spec,
        status=status,
        reason=reason,
        settings={
            "point": point.name,
            "merge_all_layers": subject.merge_all_layers,
            "tensor_parallel_size": point.tensor_parallel_size,
            "quantization": subject.quantization,
            # vLLM's FP8 cache; scores with an FP8 cache have one scale a token, as in Section 5.3.
            "kv_cache_scales": "one a tensor" if subject.kv_cache == "fp8" else None,
            "threads": point.threads,
            **asked(point),
            "dtype": point.dtype,
            "memory": budget and budget.sentence,
            "command": command and printable(command, {str(subject.folder): "MODEL", str(work): "WORK"}),
        },
        engine=engine | {"plugin": plugin},
        cost=costs,
        result=result,
        seconds=time.monotonic() - started,
    )


def _numbers(kind: Kind, run: Run, command: list[str]) -> dict[str, Any]:
    """What a kind measures; without the baseline where memory is for one engine alone."""
    try:
        return kind.numbers(run, command)
    except OutOfMemory:
        if run.baseline is None:
            raise
        run.engines.close()
        return kind.numbers(replace(run, baseline=None), command)


def asked(point: Point) -> dict[str, Any]:
    """What a point asks for, whatever is served on whatever machine; an artifact that shows it compares its records with it."""
    return {
        **point.engine,
        "prefix_caching": False,
        "memory_gib": point.settings.memory_gib,
        "speculative": speculation(point),
        "seed": point.seed,
        "in_turns": point.in_turns,
        **KINDS[point.settings.measure].settings(point),
    }


def engine_key(point: Point) -> str:
    """What the points of a model, variant and KV cache need in common to be measured on one engine."""
    kind = KINDS[point.settings.measure]
    key = {"server": kind.server, "memory_gib": point.settings.memory_gib, "speculative": speculation(point)}
    if point.gpus:  # a processor has one process for all, and on it nothing runs beside them
        key |= {"alone": kind.alone, "single": kind.single}
    return json.dumps(key | {"engine": point.engine, "seed": point.seed}, sort_keys=True)


def cost(subject: Subject, prompt: int, output: int) -> dict[str, float]:
    """What such requests cost by the cost model, and the limits that follow for the variant.

    Returns:
        baseline_flops_per_token: the unchanged model's FLOPs for each processed token of such a request.
        request_speedup_limit, prefill_speedup_limit: as `speedup_limits`.
        kv_bytes_per_token: bytes of KV cache.
        capacity_limit: tokens of the cache relative to the unchanged model with a 16-bit one.
    """
    arch, spec = subject.architecture, subject.spec
    baseline = sum(request_flops(arch, None, prompt, output).values())
    dtype = "fp8" if subject.kv_cache == "fp8" else "bfloat16"
    size = kv_bytes_per_token(arch, spec, dtype, merged=subject.merge_all_layers)
    return {
        "baseline_flops_per_token": baseline / (prompt + output),
        **{f"{name}_limit": limit for name, limit in speedup_limits(arch, spec, prompt, output).items()},
        "kv_bytes_per_token": size,
        "capacity_limit": kv_bytes_per_token(arch, None) / size,
    }


def headline(record: dict[str, Any]) -> str:
    """The main number of a record in words."""
    if record["result"] is None:
        return f"{'OOM' if record['status'] == 'oom' else record['status']}, {record['reason']}"
    return KINDS[record["measure"]].headline(record["result"])
