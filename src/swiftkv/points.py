"""The serving points of the configuration: what each kind must say, and what all share."""

from __future__ import annotations

import math
from typing import Any

from swiftkv.data.workload import average_lengths
from swiftkv.errors import UserError

SENT = ("title", "longest", "goodput", "request_rates")  # of a workload, what a measurement is told


def engine(config: dict[str, Any]) -> dict[str, Any]:
    """What `serving.engine` says of a run: not how long its start may take, which changes no number."""
    return {key: value for key, value in config["serving"]["engine"].items() if key != "start_timeout"}


def point(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A serving point with what all points share and its workloads filled in, as the measuring scripts take it."""
    serving = config["serving"]
    shared = {key: serving[key] for key in ("output_tokens", "seed")} | {"engine": engine(config)}
    found = shared | serving["points"][name]
    if "workloads" in found:
        entries = {workload: config["workloads"][workload] for workload in found["workloads"]}
        found["workloads"] = {name: {key: entry[key] for key in SENT} for name, entry in entries.items()}
    return found


# What each kind of serving point must have, and what it may have.
_ANY_POINT = {"output_tokens", "memory_gib", "enforce_eager"}
_POINT_KEYS = {
    "throughput": ({"input_tokens", "total_tokens"}, _ANY_POINT | {"warmups"}),
    "latency": (
        {"input_tokens", "request_rates", "seconds"},
        _ANY_POINT | {"min_requests", "refine_steps", "dataset", "speculative"},
    ),
    "goodput": ({"workloads", "seconds"}, {"min_requests", "memory_gib", "enforce_eager", "prefix_caching"}),
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
    for name, workload in config["workloads"].items():
        _check_workload(name, workload)
    for name in config["serving"]["points"]:
        _check_point(config, name)


def _check_workload(name: str, workload: dict[str, Any]) -> None:
    place, source = f"config, at workloads.{name}", workload["source"]
    if "columns" in source and "milliseconds" in source:
        raise UserError(f"{place}.source: milliseconds are of a JSON-lines trace, columns of a CSV; it cannot be both")
    for number, what in enumerate(("input", "output")):
        average, longest = average_lengths(workload)[number], workload["longest"][f"{what}_tokens"]
        if average > longest:
            raise UserError(
                f"{place}: its requests have {average:g} {what} tokens on average, but longest leaves out all above {longest}"
            )


def _check_point(config: dict[str, Any], name: str) -> None:
    entry, engine = config["serving"]["points"][name], config["serving"]["engine"]
    place, kind, keys = f"config, at serving.points.{name}", entry["measure"], set(entry) - {"measure"}
    required, optional = _POINT_KEYS[kind]
    if missing := sorted(required - keys):
        raise UserError(f"{place}: a {kind} point needs {missing[0]}")
    if unknown := sorted(keys - required - optional):
        raise UserError(f"{place}: a {kind} point has no {unknown[0]}")
    for workload in entry.get("workloads", []):
        if workload not in config["workloads"]:
            known = ", ".join(config["workloads"])
            raise UserError(f"{place}: {workload!r} is not defined under workloads (known: {known})")
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
