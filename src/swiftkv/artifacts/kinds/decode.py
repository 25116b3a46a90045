"""Time per output token while a whole batch only decodes, by batch size; not in the paper."""

from __future__ import annotations

from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING, Record
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


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """Median milliseconds per output token, one column a batch size, and the ratio to the baseline with its range."""
    serving = read_serving(entry, files, "decode")
    point, footnotes = serving.points[0], Footnotes()
    sizes = entry["points"][point]["batch_sizes"]
    values, times, ratios = [], [], []
    for model in serving.models:
        for case in serving.cases:
            record = serving.find(point, model, case)
            rows = [_values(serving, model, case, size) for size in sizes]
            values += rows
            head = {"Model": serving.title(model)} if len(serving.models) > 1 else {}
            head["Variant"] = serving.label(case)
            times.append(
                {
                    **head,
                    "Mode": (record.engine.get("compilation")) or MISSING,
                    **{_column(row): _time(row, record, footnotes) for row in rows},
                }
            )
            if case != BASELINE:
                ratios.append({**head, **{_column(row): _times(row) for row in rows}})
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
    return Table(entry["name"], heading(serving), pd.DataFrame(values), panels, notes)


def _values(serving: Serving, model: str, case: Case, size: int) -> dict[str, Any]:
    """A line of the CSV: one model, case and batch size; times are milliseconds per output token."""
    point = serving.points[0]
    record = serving.find(point, model, case)
    median, lowest, highest = _at(record, size)
    reason = "not measured at this batch size" if record.status == "ok" else record.why
    base, base_lowest, base_highest = _at(serving.find(point, model, BASELINE), size)
    return {
        "model": model,
        "title": serving.title(model),
        "point": point,
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "status": record.status,
        "reason": None if median is not None else reason,
        "batch_size": size,
        "input_tokens": serving.entry["points"][point].get("input_tokens"),
        "conditions": record.conditions() or None,
        "mode": record.engine.get("compilation"),
        "tpot_ms": median,
        "tpot_ms_min": lowest,
        "tpot_ms_max": highest,
        "tpot_ratio": ratio(median, base),
        "tpot_ratio_min": ratio(lowest, base_highest),
        "tpot_ratio_max": ratio(highest, base_lowest),
    }


def _at(record: Record, size: int) -> tuple[float | None, float | None, float | None]:
    """Median, fastest and slowest time at a batch size; None where it was not measured."""
    times, sizes = record.value("tpot_ms"), record.value("batch_sizes") or []
    if not times or size not in sizes:
        return None, None, None
    return tuple(times[name][sizes.index(size)] for name in ("median", "min", "max"))


def _column(row: dict[str, Any]) -> str:
    return f"{row['batch_size']:,}"


def _time(row: dict[str, Any], record: Record, footnotes: Footnotes) -> str:
    if row["tpot_ms"] is not None:
        return show(row["tpot_ms"], 3)
    return f"{record.blank} {footnotes.mark(row['reason'])}"


def _times(row: dict[str, Any]) -> str:
    if row["tpot_ratio"] is None:
        return MISSING
    return f"{row['tpot_ratio']:.2f}× ({row['tpot_ratio_min']:.2f} to {row['tpot_ratio_max']:.2f})"


KIND = Kind("table", ("models", "variants", "points"), needs, make, exactly={"points": 1})
