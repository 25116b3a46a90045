"""How long a busy vLLM engine is, for plans: some of its requests step by step, the others like them."""

from __future__ import annotations

from functools import cache

from swiftkv.predict.engine import Limits, all_at_once
from swiftkv.predict.step import Served

SIMULATED = 10**6  # tokens that are served step by step; after so many an engine only goes on as it does


@cache  # a plan asks the same of many jobs
def busy_seconds(served: Served, limits: Limits, prompt: int, output: int, count: int) -> float:
    """Seconds of so many requests that are all there at once; 0 where the cache does not hold one of them."""
    part = max(1, min(count, SIMULATED // (prompt + output)))
    return (all_at_once(served, limits, prompt, output, part) or 0.0) * count / part
