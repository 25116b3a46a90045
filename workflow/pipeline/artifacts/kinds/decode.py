"""Time per output token while a whole batch only decodes, by batch size; not in the paper."""

from __future__ import annotations

from typing import Any

from pipeline.artifacts.columns import Column, across, grid, models, table
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.records import Record
from pipeline.artifacts.serving import BASELINE, Cell, ratio, read_serving, serving_kind
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits
from pipeline.statistics import mean_of_turns


def make(entry: Entry, files: Files) -> Table:
    """Median milliseconds per output token, one column a batch size, and the ratio to the baseline with its range."""
    serving, footnotes, lines = read_serving(entry, files, "decode"), Footnotes(), []
    for cell in serving.cells():
        sizes = {size: _line(cell, size) for size in cell.settings["batch_sizes"]}
        mode = {"mode": cell.record.engine.get("compilation")}
        lines.append(cell.place | cell.variant | mode | {"_label": serving.label(cell.case)} | sizes)
    head = [*models(lines), Column("Variant", "_label")]
    headers = {size: f"{size:,}" for point in entry["points"].values() for size in point["batch_sizes"]}
    times = [*head, Column("Mode", "mode"), *across(Column("", "tpot_ms", digits(3), why="reason"), headers)]
    panels = [
        grid(lines, times, footnotes, "(a) Median milliseconds per output token, by batch size", lambda line: None)
    ]
    if compared := [line for line in lines if (line["variant"], line["kv_cache"]) != BASELINE]:
        caption = "(b) Ratio to the baseline"
        panels.append(grid(compared, head + across(Column("", _ratio), headers), footnotes, caption, lambda line: None))
    values = [line[size] for line in lines for size in headers]
    return table(entry, values, panels, entry.get("notes", []), footnotes, serving.heading)


def _line(cell: Cell, size: int) -> dict[str, Any]:
    """A line of the CSV: one model, case and batch size; times are milliseconds per output token."""
    record = cell.record
    median, lowest, highest = _at(record, size)
    base, base_lowest, base_highest = _at(cell.base, size)
    gain = ratio(median, base), ratio(lowest, base_highest), ratio(highest, base_lowest), None
    if median is not None and (
        turns := [1 / turn for turn in record.speedups("ms", record.value("batch_sizes").index(size))]
    ):
        mean, error = mean_of_turns(turns)
        gain = mean, min(turns), max(turns), error
    unmeasured = {"reason": "not measured at this batch size"} if record.ok and median is None else {}
    return (
        cell.head(median)
        | unmeasured
        | {
            "batch_size": size,
            "input_tokens": cell.settings.get("input_tokens"),
            "conditions": record.conditions(),
            "mode": record.engine.get("compilation"),
            "tpot_ms": median,
            "tpot_ms_min": lowest,
            "tpot_ms_max": highest,
            **dict(zip(("tpot_ratio", "tpot_ratio_min", "tpot_ratio_max", "tpot_ratio_stderr"), gain, strict=True)),
        }
    )


def _at(record: Record, size: int) -> tuple[float | None, float | None, float | None]:
    """Median, fastest and slowest time at a batch size; None where it was not measured."""
    times, sizes = record.value("tpot_ms"), record.value("batch_sizes") or []
    if not times or size not in sizes:
        return None, None, None
    return tuple(times[name][sizes.index(size)] for name in ("median", "min", "max"))


def _ratio(line: dict[str, Any]) -> str | None:
    if line["tpot_ratio"] is None:
        return None
    if line["tpot_ratio_stderr"] is not None:
        return f"{line['tpot_ratio']:.2f}× ± {line['tpot_ratio_stderr']:.2f}"
    return f"{line['tpot_ratio']:.2f}× ({line['tpot_ratio_min']:.2f} to {line['tpot_ratio_max']:.2f})"


KIND = serving_kind("table", make, exactly={"points": 1})
