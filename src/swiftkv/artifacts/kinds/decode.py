"""Time per output token while a whole batch only decodes, by batch size; not in the paper."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import MISSING, Record
from swiftkv.artifacts.serving import BASELINE, Cell, ratio, read_serving, serving_kind
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import show


def make(entry: Entry, files: Files) -> Table:
    """Median milliseconds per output token, one column a batch size, and the ratio to the baseline with its range."""
    serving, footnotes = read_serving(entry, files, "decode"), Footnotes()
    values, times, ratios = [], [], []
    for cell in serving.cells():
        rows = {f"{size:,}": _values(cell, size) for size in cell.settings["batch_sizes"]}
        values += rows.values()
        head = cell.title | {"Variant": serving.label(cell.case)}
        mode = {"Mode": cell.record.engine.get("compilation") or MISSING}
        times.append(head | mode | {size: _time(row, cell.record, footnotes) for size, row in rows.items()})
        if cell.case != BASELINE:
            ratios.append(head | {size: _times(row) for size, row in rows.items()})
    panels = [Panel(pd.DataFrame(times), "(a) Median milliseconds per output token, by batch size")]
    if ratios:
        panels.append(Panel(pd.DataFrame(ratios), "(b) Ratio to the baseline; in brackets what all repeats allow"))
    notes = [
        "All sequences of a batch are in decoding and no prompt is computed. SwiftKV decodes through every layer, so a "
        "ratio below 1 comes from reading a smaller KV cache, and one above 1 is overhead.",
        "In brackets: from the fastest repeat over the baseline's slowest to the slowest over the baseline's fastest.",
        *entry.get("notes", []),
        *footnotes.lines(),
    ]
    return Table(entry["name"], serving.heading, pd.DataFrame(values), panels, notes)


def _values(cell: Cell, size: int) -> dict[str, Any]:
    """A line of the CSV: one model, case and batch size; times are milliseconds per output token."""
    record = cell.record
    median, lowest, highest = _at(record, size)
    base, base_lowest, base_highest = _at(cell.base, size)
    unmeasured = {"reason": "not measured at this batch size"} if record.ok and median is None else {}
    return cell.head(median) | unmeasured | {
        "batch_size": size,
        "input_tokens": cell.settings.get("input_tokens"),
        "conditions": record.conditions(),
        "mode": record.engine.get("compilation"),
        "tpot_ms": median,
        "tpot_ms_min": lowest,
        "tpot_ms_max": highest,
        "tpot_ratio": ratio(median, base),
        "tpot_ratio_min": ratio(lowest, base_highest),
        "tpot_ratio_max": ratio(highest, base_lowest),
    }  # fmt: skip


def _at(record: Record, size: int) -> tuple[float | None, float | None, float | None]:
    """Median, fastest and slowest time at a batch size; None where it was not measured."""
    times, sizes = record.value("tpot_ms"), record.value("batch_sizes") or []
    if not times or size not in sizes:
        return None, None, None
    return tuple(times[name][sizes.index(size)] for name in ("median", "min", "max"))


def _time(row: dict[str, Any], record: Record, footnotes: Footnotes) -> str:
    if row["tpot_ms"] is not None:
        return show(row["tpot_ms"], 3)
    return f"{record.blank} {footnotes.mark(row['reason'])}"


def _times(row: dict[str, Any]) -> str:
    if row["tpot_ratio"] is None:
        return MISSING
    return f"{row['tpot_ratio']:.2f}× ({row['tpot_ratio_min']:.2f} to {row['tpot_ratio_max']:.2f})"


KIND = serving_kind("table", make, exactly={"points": 1})
