"""Tokens that fit into the KV cache, by variant and KV-cache format: the paper's memory claim, as vLLM reports it."""

from __future__ import annotations

from typing import Any

from pipeline.artifacts.columns import Column, grid, models, table
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.serving import Cell, ratio, read_serving, serving_kind
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits
from swiftkv.cost import GIBI

_COLUMNS = [
    Column("Variant", "_label"),
    Column("KV format", lambda line: {"auto": "as weights", "fp8": "FP8"}[line["kv_cache"]]),
    Column("KV tokens", "kv_cache_tokens", ",", why="reason"),
    Column("KV memory,\nGiB", lambda line: line["kv_cache_bytes"] and line["kv_cache_bytes"] / GIBI, digits(3)),
    Column("KiB a token", lambda line: line["kv_bytes_per_token"] and line["kv_bytes_per_token"] / 1024, ",.4g"),
    Column("Against\nbaseline", "capacity_ratio", "{:.3f}×".format),
    Column("Cost model\nallows", "capacity_ratio_limit", "{:.3f}×".format),
]


def make(entry: Entry, files: Files) -> Table:
    """KV tokens of every case, against the baseline's, and the ratio that layers, groups and bytes allow.

    The ratio is taken at equal cache memory: the budgets differ a little where the weights do.
    """
    serving = read_serving(entry, files, "kv_capacity")
    lines, footnotes = [_line(cell) for cell in serving.cells()], Footnotes()
    panel = grid(lines, [*models(lines), *_COLUMNS], footnotes)
    return table(entry, lines, [panel], entry.get("notes", []), footnotes, serving.heading)


def _line(cell: Cell) -> dict[str, Any]:
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
        "_label": cell.serving.label(cell.case, kv_format=False),
    }


KIND = serving_kind("table", make, exactly={"points": 1})
