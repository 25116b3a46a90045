"""KV capacity in tokens, as vLLM reports it after its own profiling: an engine is started and asked nothing."""

from __future__ import annotations

from pipeline.measure.engine import EngineFailure, cache_size
from pipeline.measure.kind import OWN, Kind, Numbers, Run, engine_command, engines, requested
from swiftkv.cost import GIBI


def numbers(run: Run, command: list[str]) -> Numbers:
    """What the engine says once it is up."""
    with engines(run, command) as sides:
        sides[OWN].ask({"do": "ready"})
        tokens, gib = cache_size(sides[OWN].job.text())
    if tokens is None:
        raise EngineFailure(f"vLLM did not say how many tokens its KV cache holds; what it printed is in {run.log}")
    size = run.budget.kv_cache_bytes
    if size is None and gib is not None:
        size = int(gib * GIBI)  # printed with two decimals
    return {"kv_cache_tokens": tokens, "kv_cache_bytes": size}


KIND = Kind(
    lengths=requested,
    settings=lambda point: dict(zip(("input_tokens", "output_tokens"), requested(point), strict=True)),
    command=engine_command(requested),
    numbers=numbers,
    headline=lambda result: f"{result['kv_cache_tokens']} tokens",
)
