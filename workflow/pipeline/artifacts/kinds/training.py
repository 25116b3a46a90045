"""What training costs: hours, tokens and GPUs of every training, beside what the sources state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.artifacts.columns import PUBLISHED, Column, grid, models, table
from pipeline.artifacts.kind import ArtifactKind, Entry, Files
from pipeline.artifacts.records import Published, Record, read_records, read_statements
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits

_QUANTITIES = {
    "training_hours": ("hours", "hours"),
    "training_tokens": ("tokens", "training tokens"),
    "training_gpus": ("gpus", "GPUs"),
    "training_samples": ("samples", "training samples"),
}

_NUMBERS = (
    "hours",
    "seconds",
    "tokens",
    "steps",
    "gpus",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "loss_first",
    "loss_last",
)


def make(entry: Entry, files: Files) -> Table:
    """(a) One row a training; (b) the published statements about the models that ran, where there are any."""
    records = read_records(entry, files.get("training", ()), "training")
    statements = _statements(entry, files)
    footnotes = Footnotes()
    lines = [
        _line(model, records.find(model["name"], variant), statements)
        for model in entry["models"]
        for variant, _ in entry["cases"]
    ]
    columns = [
        *models(lines),
        Column("Variant", "variant"),
        Column("Hours", "hours", digits(3), why="missing"),
        Column("Tokens", "tokens", ","),
        Column("Hardware", lambda line: f"{line['gpus']:.4g} × {line['device']}" if line["gpus"] else line["device"]),
        Column("Tokens/s", "tokens_per_second", digits(3)),
        Column(
            "Tokens/s\na device", lambda line: line["tokens_per_second_per_gpu"] or line["tokens_per_second"], digits(3)
        ),
        Column("Steps", "steps", ","),
        Column("First\nloss", "loss_first", digits(4)),
        Column("Last\nloss", "loss_last", digits(4)),
    ]
    panels = [grid(lines, columns, footnotes, "(a) Measured" if statements else None)]
    if statements:
        columns = [
            Column("Model", "model"),
            Column("What", lambda row: _QUANTITIES.get(row["quantity"], ("", row["quantity"]))[1]),
            Column("Value", lambda row: _amount(row) + (f" {footnotes.mark(row['note'])}" if row.get("note") else "")),
            Column("Statement", lambda row: row["text"] or ""),
            Column("Source", "source"),
        ]
        stated = [{**row, "_origins": {"Value": PUBLISHED}} for row in statements]
        panels.append(grid(stated, columns, footnotes, "(b) Published", lambda row: None))
    return table(entry, lines, panels, entry.get("notes", []), footnotes)


def _statements(entry: Entry, files: Files) -> list[Published]:
    """What the sources state about the cost of training the models that ran."""
    ran = {model["published"] for model in entry["models"]}
    rows = read_statements(entry, files)
    return [row for row in rows if row["model"] in ran]


def _line(model: dict[str, Any], record: Record, statements: Sequence[Published]) -> dict[str, Any]:
    """A line of the CSV: one training, with the distinct published values of its model."""
    theirs = {}
    for quantity, (name, _) in _QUANTITIES.items():
        found = [
            _amount(row)
            for row in statements
            if (row["model"], row["quantity"]) == (model["published"], quantity)
            and row["variant"] in (None, record.variant)
        ]
        theirs[f"{name}_published"] = " / ".join(dict.fromkeys(found)) or None
    return {
        "model": model["name"],
        "title": model["title"],
        "variant": record.variant,
        "kv_cache": "auto",
        **{name: record.value(name) for name in _NUMBERS},
        "device": (record.result["accelerator"] or record.device) if record.ok else None,
        "missing": None if record.ok else record.why,
        **theirs,
    }


def _amount(row: Published) -> str:
    low, high = row["low"], row["high"]
    if low is None:
        return f"at most {_number(high)}"
    if high is None:
        return f"at least {_number(low)}"
    return _number(low) if low == high else f"{_number(low)}–{_number(high)}"


def _number(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value:g}"


KIND = ArtifactKind("table", ("models", "variants"), ("training",), make)
