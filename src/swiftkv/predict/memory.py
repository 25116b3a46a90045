"""How many tokens the KV cache of an engine holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swiftkv.cost import GIBI
from swiftkv.predict.step import Served


def weight_bytes(served: Served, parameters: int) -> int:
    """Of the model's weights."""
    return parameters * (1 if served.fp8 else 2)


def cache_tokens(served: Served, parameters: int, engine: Mapping[str, Any], limit: float | None = None) -> float:
    """Tokens that fit; negative where not even the weights do.

    On GPUs the cache has what weights, activations and the engine itself leave of the share that the engine takes. On a
    processor it has a size of its own, or what the weights leave of a limit.

    Args:
        parameters: of the model and its variant.
        engine: gpu_memory_utilization, or of a processor cpu_kv_cache_gib.
        limit: GB of 2^30 bytes for weights and cache, on a GPU for all that the engine takes of each.
    """
    device, weights = served.device, weight_bytes(served, parameters)
    if device.memory:
        share = device.memory * engine["gpu_memory_utilization"]
        each = (share if limit is None else min(share, limit * GIBI)) - device.reserve
        room = served.devices * each - weights
    else:
        room = engine["cpu_kv_cache_gib"] * GIBI if limit is None else limit * GIBI - weights
    return room / served.cache_bytes
