"""One question answered by the baseline and by a variant, with the times of both."""

from __future__ import annotations

import statistics
from typing import Any

from pipeline.artifacts.columns import Column, grid, measured, models, table
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.serving import BASELINE, Cell, read_serving, serving_kind
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits
from pipeline.statistics import mean_of_turns

SHOWN = 400  # characters of a question
_SPEEDUP = ("first_token_speedup", "first_token_speedup_stderr")


def make(entry: Entry, files: Files) -> Table:
    """One row a variant; above one that took turns with the baseline stands what the baseline answered."""
    serving, footnotes, lines = read_serving(entry, files, "answer"), Footnotes(), []
    for cell in serving.cells():
        if cell.record.value("baseline_text") is not None:
            case = BASELINE._asdict() | {"_label": "Baseline"}
            lines.append(_line(cell, "baseline_") | case | dict.fromkeys(_SPEEDUP))
        lines.append(_line(cell) | {"_label": serving.label(cell.case)})
    columns = [
        *models(lines),
        Column("", "_label"),
        Column("Answer", lambda line: None if line["text"] is None else line["text"] or "(empty)", why="reason"),
        Column("Tokens", "tokens"),
        Column("First token,\nms", "first_token_ms", digits(3)),
        Column("Last token,\ns", "seconds", digits(3)),
        Column("First token,\nspeed-up", _speedup),
    ]
    asked = dict.fromkeys(line["question"] for line in lines if line["question"])
    caption = "; ".join(map(_cut, asked)) or None
    return table(
        entry, lines, [grid(lines, columns, footnotes, caption)], entry.get("notes", []), footnotes, serving.heading
    )


def _line(cell: Cell, side: str = "") -> dict[str, Any]:
    """A line of the CSV: what one side answered; `side` begins the names of its numbers in the record."""
    record = cell.record
    times = {unit: record.value(f"{side}samples_{unit}") for unit in ("ms", "seconds")}
    median = {unit: statistics.median(found) if found else None for unit, found in times.items()}
    turns = record.speedups("ms")
    return cell.head(record.ok) | {
        **{name: record.value(name) for name in ("question", "prompt_tokens")},
        **{name: record.value(f"{side}{name}") for name in ("text", "tokens")},
        "first_token_ms": median["ms"],
        "seconds": median["seconds"],
        **measured("first_token_speedup", mean_of_turns(turns) if turns else None),
    }


def _speedup(line: dict[str, Any]) -> str:
    value, error = (line[name] for name in _SPEEDUP)
    if value is None:
        return "–"
    return f"{value:.2f}×" + (f" ± {error:.2f}" if error is not None else "")


def _cut(question: str) -> str:
    """A question on one line, its middle left out where it is long."""
    text = " ".join(question.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} [...] {text[-SHOWN // 2 :]}"


KIND = serving_kind("table", make, exactly={"points": 1})
