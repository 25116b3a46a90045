"""The serving points of the configuration: what each kind must say, and what all share."""

from __future__ import annotations

import math
from typing import Any

from swiftkv.errors import UserError


def point(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A serving point with what all points share filled in, as the measuring scripts take it."""
    serving = config["serving"]
    shared = {key: serving[key] for key in ("output_tokens", "seed", "engine")}
    return shared | serving["points"][name]


# What each kind of serving point must have, and what it may have.
_ANY_POINT = {"output_tokens", "memory_gib", "enforce_eager"}
_POINT_KEYS = {
    "throughput": ({"input_tokens", "total_tokens"}, _ANY_POINT | {"warmups"}),
    "latency": (
        {"input_tokens", "request_rates", "seconds"},
        _ANY_POINT | {"min_requests", "refine_steps", "dataset", "speculative"},
    ),
    "forward_time": ({"batch_tokens", "repeats"}, _ANY_POINT - {"output_tokens"}),
    "kv_capacity": ({"input_tokens"}, _ANY_POINT),
    "decode": ({"input_tokens", "batch_sizes", "repeats"}, _ANY_POINT),
}


def check_points(config: dict[str, Any]) -> None:
    """Raise a `UserError` for the first point that cannot be measured as it is written."""
    engine = config["serving"]["engine"]
    if engine["max_num_batched_tokens"] < engine["max_num_seqs"]:
        raise UserError(
            f"config, at serving.engine: a step of max_num_batched_tokens = {engine['max_num_batched_tokens']} cannot "
            f"hold a token of each of max_num_seqs = {engine['max_num_seqs']} sequences"
        )
    for name in config["serving"]["points"]:
        _check_point(config, name)


def _check_point(config: dict[str, Any], name: str) -> None:
    entry, engine = config["serving"]["points"][name], config["serving"]["engine"]
    place, kind, keys = f"config, at serving.points.{name}", entry["measure"], set(entry) - {"measure"}
    required, optional = _POINT_KEYS[kind]
    if missing := sorted(required - keys):
        raise UserError(f"{place}: a {kind} point needs {missing[0]}")
    if unknown := sorted(keys - required - optional):
        raise UserError(f"{place}: a {kind} point has no {unknown[0]}")
    values = point(config, name)
    if kind == "throughput" and values["total_tokens"] < values["input_tokens"] + values["output_tokens"]:
        raise UserError(
            f"{place}: total_tokens = {values['total_tokens']} is less than one request of {values['input_tokens']} "
            f"input and {values['output_tokens']} output tokens"
        )
    if kind == "forward_time" and max(entry["batch_tokens"]) > engine["max_num_batched_tokens"]:
        raise UserError(
            f"{place}: {max(entry['batch_tokens'])} tokens do not fit into one step, which has at most "
            f"serving.engine.max_num_batched_tokens = {engine['max_num_batched_tokens']}"
        )
    if kind == "decode" and max(entry["batch_sizes"]) > engine["max_num_seqs"]:
        raise UserError(
            f"{place}: {max(entry['batch_sizes'])} sequences do not run at once; at most "
            f"serving.engine.max_num_seqs = {engine['max_num_seqs']} do"
        )
    speculative = entry.get("speculative", {})
    if speculative.get("prompt_lookup_min", 1) > speculative.get("prompt_lookup_max", math.inf):
        raise UserError(f"{place}.speculative: prompt_lookup_min is above prompt_lookup_max")
