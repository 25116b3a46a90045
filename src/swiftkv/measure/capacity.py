"""KV capacity in tokens, as vLLM reports it after its own profiling: an engine is started and asked nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from swiftkv.measure.engine import EngineFailure, OutOfMemory, failure, observed
from swiftkv.measure.forward import engine_command, engine_only_environment
from swiftkv.measure.memory import GIB
from swiftkv.measure.point import Point, Subject, max_model_len, printable
from swiftkv.measure.process import running
from swiftkv.measure.record import cache_cost, record


def measure_capacity(subject: Subject, point: Point, work: Path) -> dict[str, Any]:
    """The record of one capacity point.

    Args:
        work: folder for vLLM's log.

    Raises:
        EngineFailure: vLLM failed for another reason than memory, or did not say its capacity.
    """
    started = time.monotonic()
    log, command, reason, result, budget = work / "vllm.log", None, None, None, None
    work.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    try:
        budget = point.budget(subject)
        length = max_model_len(subject.config, point["input_tokens"], point["output_tokens"])
        command = engine_command(subject, point, length, work / "none.json", [])
        with running(command, log, engine_only_environment(point)) as job:
            if status := job.wait():
                raise failure("starting vLLM", status, job.text(), job.log)
    except OutOfMemory as error:
        reason = str(error)
    text = log.read_text(errors="replace") if log.exists() else ""
    engine = observed(text, kv_cache_dtype=subject.kv_cache, swiftkv=subject.spec is not None)
    if reason is None:
        if engine["kv_cache_tokens"] is None:
            raise EngineFailure(f"vLLM did not say how many tokens its KV cache holds; what it printed is in {log}")
        size = budget.kv_cache_bytes
        if size is None and engine["kv_cache_gib"] is not None:
            size = int(engine["kv_cache_gib"] * GIB)  # printed with two decimals
        result = {"kv_cache_tokens": engine["kv_cache_tokens"], "kv_cache_bytes": size}
    return record(
        subject,
        point,
        settings={
            "input_tokens": point["input_tokens"],
            "output_tokens": point["output_tokens"],
            "memory": budget and budget.sentence,
            "command": printable(command, {str(subject.folder): "MODEL", str(work): "WORK"}) if command else None,
        },
        engine=engine,
        cost=cache_cost(subject),
        result=result,
        reason=reason,
        seconds=time.monotonic() - started,
    )
