"""One serving measurement, whatever its kind: memory, command, failures and the record."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.config.points import POINTS
from pipeline.engines.environment import engine_environment
from pipeline.engines.log import OutOfMemory, Unsupported, observed, require_fp8_cache
from pipeline.measure.latency import Latency
from pipeline.measure.offline import Answer, Decode, ForwardTime, KvCapacity, Throughput
from pipeline.measure.point import Point, printable, vllm_command
from pipeline.measure.subject import BASELINE, Subject
from pipeline.measure.turns import VARIANT, Engines, Run
from pipeline.records import describe_spec, measurement, weights_of
from swiftkv.architectures import check_served
from swiftkv.cost import Dimensions, kv_bytes_per_token, request_flops, speedup_limits
from swiftkv.errors import UserError
from swiftkv.section import read

KINDS: dict[str, type[Point]] = {
    "throughput": Throughput,
    "latency": Latency,
    "forward_time": ForwardTime,
    "kv_capacity": KvCapacity,
    "decode": Decode,
    "answer": Answer,
}


def read_point(name: str, settings: dict[str, Any], **machine: Any) -> Point:
    """A point as `Config.point` gives it.

    Args:
        name: key under serving.points.
        settings: those of the point and those that all points share.
        machine: gpus, threads and start_timeout.

    Raises:
        UserError: the settings are those of no point.
    """
    shared = ("engine", "seed", "in_turns")
    own = {key: value for key, value in settings.items() if key not in shared}
    typed, engine = read(POINTS[own["measure"]], own, f"point {name!r}"), dict(settings["engine"])
    if typed.enforce_eager is not None:
        engine["enforce_eager"] = typed.enforce_eager
    in_turns = settings.get("in_turns", False)
    return KINDS[own["measure"]](name, typed, engine, settings["seed"], in_turns=in_turns, **machine)


def recorded_settings(point: Point) -> dict[str, Any]:
    """The settings of a point in its records, whatever is served on whatever machine; artifacts compare records by them."""
    return {
        **point.engine,
        "prefix_caching": False,
        "speculative": point.speculation,
        "seed": point.seed,
        "in_turns": point.in_turns,
        **point.settings.model_dump(exclude={"measure", "enforce_eager", "speculative", "async_scheduling"}),
        **point.recorded,
    }


def engine_key(point: Point) -> str:
    """Return a key that is equal for points of a model, variant and KV cache that one engine can measure."""
    key = {"server": point.server, "memory_gib": point.settings.memory_gib, "speculative": point.speculation}
    if point.gpus:  # a processor has one process for all, and on it nothing runs beside them
        key |= {"alone": point.alone, "single": point.single, "async_scheduling": point.async_scheduling}
    return json.dumps(key | {"engine": point.engine, "seed": point.seed}, sort_keys=True)


def check_together(config: Config) -> None:
    """Raise a `UserError` for a set of `serving.together` with points that need different engines at this scale."""
    stated = {config.models[model].gpus.serve for model in config.in_use} - {None}
    for gpus, name in itertools.product({min(1, gpus) for gpus in stated}, config.serving.together):
        engines: dict[str, str] = {}
        for point in config.sets.points[name]:
            engines.setdefault(engine_key(read_point(point, config.point(point), gpus=gpus, threads=1)), point)
        if len(engines) > 1:
            first, second, *_ = engines.values()
            raise UserError(
                f"config, at serving.together: points {first!r} and {second!r} of set {name!r} need different engines on "
                f"{'GPUs' if gpus else 'a processor'}; take {name!r} out to measure them apart"
            )


def measure(subject: Subject, point: Point, engines: Engines, chats: Path | None = None) -> dict[str, Any]:
    """The record of one point, as `records.measurement` gives it, with `engine` and `cost`.

    Too little memory is a record too, with status "oom", and so is what the model is too short for or vLLM cannot do on this
    processor: "unavailable".

    Args:
        chats: what points with `dataset` send.

    Raises:
        UserError: the point cannot be measured on this model or in this environment; said before vLLM starts.
        EngineFailure: vLLM failed for another reason than memory.
    """
    started = time.monotonic()
    if subject.spec is not None:
        check_served(subject.config["model_type"])
    costs = cost(subject, *point.lengths)
    memory = command = result = reason = None
    status = "ok"
    try:
        if subject.kv_cache == "fp8" and not point.gpus:
            require_fp8_cache()
        memory = point.memory(subject)
        starts = {VARIANT: _start(subject, point, engines, memory)}
        command = printable(starts[VARIANT][0], subject.folder)
        run = Run(subject, point.gpus, engines, memory, starts, chats)
        if subject.baseline is not None and point.in_turns:
            try:
                baseline_start = _start(subject.baseline, point, engines, point.memory(subject.baseline))
                result = point.numbers(replace(run, starts={BASELINE: baseline_start, **starts}))
            except OutOfMemory:  # there may be enough for one engine alone
                engines.close()
        result = result or point.numbers(run)
        costs = cost(subject, *point.seen(result))
    except Unsupported as error:
        status, reason = "unavailable", str(error)
    except OutOfMemory as error:
        status, reason = "oom", str(error)
        engines.close()
    engine = observed(engines.text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None)
    return measurement(
        point.settings.measure,
        model=subject.identity,
        variant=subject.variant,
        kv_cache=subject.kv_cache,
        **(weights_of(subject.folder) if subject.weights == "trained" else {"weights": subject.weights}),
        spec=describe_spec(subject.spec, subject.config),
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
            "async_scheduling": point.async_scheduling,
            **recorded_settings(point),
            "dtype": point.dtype,
            "command": command,
        },
        engine=engine | {"plugin": "swiftkv"},
        cost=costs,
        result=result,
        seconds=time.monotonic() - started,
    )


def _start(
    subject: Subject, point: Point, engines: Engines, memory: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of vLLM for a point."""
    length = max(engines.longest, point.max_model_len(subject.config))
    environment = engine_environment(point.gpus, point.threads)
    if point.single and point.tensor_parallel_size == 1:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return vllm_command(subject, point, length, memory), environment


def cost(subject: Subject, prompt: int, output: int) -> dict[str, float]:
    """Return the costs of requests by the cost model, and the limits that follow for the variant.

    Returns:
        baseline_flops_per_token: the unchanged model's FLOPs for each processed token of such a request.
        request_speedup_limit, prefill_speedup_limit: as `speedup_limits`.
        kv_bytes_per_token: bytes of KV cache.
        capacity_limit: tokens of the cache relative to the unchanged model with a 16-bit one.
    """
    arch, spec = Dimensions.from_config(subject.config), subject.spec
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
    """Print the main number of a record."""
    if record["result"] is None:
        return f"{'OOM' if record['status'] == 'oom' else record['status']}, {record['reason']}"
    return KINDS[record["measure"]].headline(record["result"])
