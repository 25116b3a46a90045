"""Tokens that fit into the KV cache, by variant and KV-cache format: the paper's memory claim, as vLLM reports it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    heading,
    ratio,
    read_serving,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import show

_FORMATS = {"auto": "as weights", "fp8": "FP8"}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """KV tokens of every case, against the baseline's, and the ratio that layers, groups and bytes allow.

    The ratio is taken at equal cache memory: the budgets differ a little where the weights do.
    """
    serving = read_serving(entry, files, "kv_capacity")
    footnotes, values, printed, rules = Footnotes(), [], [], []
    for model in serving.models:
        if printed:
            rules.append(len(printed))
        for case in serving.cases:
            row = _values(serving, model, case)
            values.append(row)
            tokens, size = row["kv_cache_tokens"], row["kv_cache_bytes"]
            empty = "" if tokens else f"{_record(serving, model, case).blank} {footnotes.mark(row['reason'])}"
            printed.append({
                **({"Model": serving.title(model)} if len(serving.models) > 1 else {}),
                "Variant": serving.label(case, kv_format=False),
                "KV format": _FORMATS[case.kv_cache],
                "KV tokens": f"{tokens:,}" if tokens else empty,
                "KV memory,\nGiB": show(size / 2**30, 3) if size else MISSING,
                "KiB a token": f"{row['kv_bytes_per_token'] / 1024:,.4g}" if row["kv_bytes_per_token"] else MISSING,
                "Against\nbaseline": _times(row["capacity_ratio"]),
                "Cost model\nallows": _times(row["capacity_ratio_limit"]),
            })  # fmt: skip
    notes = [
        "KV tokens are vLLM's own count. Against baseline is the ratio of tokens for one byte of cache: variants with "
        "more weights leave a little less memory to the cache. vLLM rounds to whole blocks.",
        "Cost model allows: layers that keep a cache of their own (l, one for each AcrossKV group, one for "
        "Merge-all-Layers) against the model's L, and one byte a number with FP8 against two.",
    ]
    return Table(
        entry["name"],
        heading(serving),
        pd.DataFrame(values),
        [Panel(pd.DataFrame(printed), None, tuple(rules))],
        [*notes, *entry.get("notes", []), *footnotes.lines()],
    )


def _values(serving: Serving, model: str, case: Case) -> dict[str, Any]:
    """A line of the CSV: one model and case."""
    record, base = _record(serving, model, case), _record(serving, model, BASELINE)
    tokens, size = record.value("kv_cache_tokens"), record.value("kv_cache_bytes")
    base_tokens, base_size = base.value("kv_cache_tokens"), base.value("kv_cache_bytes")
    if size and base_size:
        gain = ratio(tokens / size, base_tokens / base_size)
    else:
        gain = ratio(tokens, base_tokens)
    bound = record.limit("capacity_limit")
    return {
        "model": model,
        "title": serving.title(model),
        "point": serving.points[0],
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "status": record.status,
        "reason": None if tokens else record.why,
        "conditions": record.conditions() or None,
        "weights": record.weights,
        "kv_cache_tokens": tokens,
        "kv_cache_bytes": size,
        "kv_bytes_per_token": ratio(size, tokens),
        "capacity_ratio": gain,
        "capacity_ratio_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
    }


def _record(serving: Serving, model: str, case: Case) -> Any:
    return serving.find(serving.points[0], model, case)


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}×"


KIND = Kind("table", ("models", "variants", "points"), needs, make, exactly={"points": 1})
