"""Measured throughput beside what the model of time predicts of the same points."""

from __future__ import annotations

from swiftkv.artifacts.columns import Column, grid, models, table
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.kinds.predicted_throughput import numbers
from swiftkv.artifacts.predicted import error_percent, extra, notes, read_predicted
from swiftkv.artifacts.serving import BASELINE, Cell, length_label, read_serving
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.artifacts.text import digits

_PERCENT, _TIMES = "{:+.1f}%".format, "{:.2f}×".format


def make(entry: Entry, files: Files) -> Table:
    """One row a model, point and case: speed and speed-up as measured, as predicted, and the relative errors."""
    measured = read_serving(entry, files, "throughput")
    predicted = read_predicted(entry, files, "throughput", numbers)
    lines = []
    for cell in measured.cells():
        guess = Cell(predicted, cell.model, cell.point, cell.case)
        other = cell.case != BASELINE
        lines.append(
            cell.head(cell.record.throughput)
            | {
                "conditions": cell.record.conditions(),
                "input_tokens": cell.settings["input_tokens"],
                "tokens_per_second": cell.record.throughput,
                "tokens_per_second_predicted": guess.record.throughput,
                "error_percent": error_percent(guess.record.throughput, cell.record.throughput),
                "speedup": cell.speedup if other else None,
                "speedup_predicted": guess.speedup if other else None,
                "speedup_error_percent": error_percent(guess.speedup, cell.speedup) if other else None,
                "roofline_speedup_limit": guess.record.roofline if other else None,
                "_input": length_label(cell.settings["input_tokens"]),
                "_label": measured.label(cell.case),
            }
        )
    footnotes = Footnotes()
    columns = [
        *models(lines),
        Column("Input", "_input"),
        Column("Variant", "_label"),
        Column("Measured\ntokens/s", "tokens_per_second", digits(3), why="reason"),
        Column("Predicted\ntokens/s", "tokens_per_second_predicted", digits(3)),
        Column("Error", "error_percent", _PERCENT),
        Column("Measured\nspeed-up", "speedup", _TIMES),
        Column("Predicted\nspeed-up", "speedup_predicted", _TIMES),
        Column("Error of\nspeed-up", "speedup_error_percent", _PERCENT),
        Column("Roofline", "roofline_speedup_limit", _TIMES),
    ]
    panels = [grid(lines, columns, footnotes, None, lambda line: (line["model"], line["point"]))]
    names = sorted({record.device for record in predicted.records})
    remark = f"Predicted for {', '.join(names)}; where that is another machine than the one that measured, only ratios compare."
    return table(entry, lines, panels, [remark, *notes(entry, measured=True)], footnotes, measured.heading)


KIND = ArtifactKind("table", ("models", "variants", "points"), ("serving", "dimensions", "devices"), make, extra=extra)
