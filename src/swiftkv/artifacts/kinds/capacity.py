"""Tokens that fit into the KV cache, by variant and KV-cache format: the paper's memory claim, as vLLM reports it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.serving import Cell, heading, ratio, read_serving, serving_kind
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import show

_FORMATS = {"auto": "as weights", "fp8": "FP8"}


def make(entry: Entry, files: Files) -> Table:
    """KV tokens of every case, against the baseline's, and the ratio that layers, groups and bytes allow.

    The ratio is taken at equal cache memory: the budgets differ a little where the weights do.
    """
    serving = read_serving(entry, files, "kv_capacity")
    footnotes, values, printed, rules = Footnotes(), [], [], []
    for cell in serving.cells():
        if printed and cell.case == serving.cases[0]:
            rules.append(len(printed))
        values.append(row := _values(cell))
        tokens, size = row["kv_cache_tokens"], row["kv_cache_bytes"]
        printed.append(cell.title | {
            "Variant": serving.label(cell.case, kv_format=False),
            "KV format": _FORMATS[cell.case.kv_cache],
            "KV tokens": f"{tokens:,}" if tokens else f"{cell.record.blank} {footnotes.mark(row['reason'])}",
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


def _values(cell: Cell) -> dict[str, Any]:
    """A line of the CSV: one model and case."""
    record, bound = cell.record, cell.record.limit("capacity_limit")
    (tokens, size), (base_tokens, base_size) = (
        (one.value("kv_cache_tokens"), one.value("kv_cache_bytes")) for one in (record, cell.base)
    )
    gain = ratio(tokens, base_tokens)
    if size and base_size:
        gain = ratio(tokens / size, base_tokens / base_size)
    return cell.head(tokens) | {
        "conditions": record.conditions(),
        "weights": record.weights,
        "kv_cache_tokens": tokens,
        "kv_cache_bytes": size,
        "kv_bytes_per_token": ratio(size, tokens),
        "capacity_ratio": gain,
        "capacity_ratio_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
    }


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}×"


KIND = serving_kind("table", make, exactly={"points": 1})
