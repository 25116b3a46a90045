"""What training costs: hours, tokens and GPUs of every training, beside what the sources state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING, Published, Record, read_records, read_statements
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, heading, show

_QUANTITIES = {
    "training_hours": ("hours", "hours"),
    "training_tokens": ("tokens", "training tokens"),
    "training_gpus": ("gpus", "GPUs"),
    "training_samples": ("samples", "training samples"),
}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """The training record of every row."""
    return {"training": paths.training(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """(a) One row a training; (b) the published statements about the models that ran, where there are any."""
    records = read_records(entry, files.get("training", ()), "training")
    statements = _statements(entry, files)
    footnotes, values, printed, rules = Footnotes(), [], [], []
    for model in entry["models"]:
        rules += [len(printed)] if printed else []
        for variant, _ in entry["cases"]:
            record = records.find(model["name"], variant)
            row = _values(entry, model, variant, record, statements)
            values.append(row)
            printed.append(
                {**({"Model": model["title"]} if len(entry["models"]) > 1 else {}), **_cells(row, footnotes)}
            )
    panels = [Panel(pd.DataFrame(printed), "(a) Measured" if statements else None, tuple(rules))]
    notes = [
        *entry.get("notes", []),
        "Hours are those of the optimizer steps, without loading, packing, stored teacher states and checkpoints. Tokens "
        "are those that counted in the loss, every epoch anew. A loss is that of the recipe's own objective.",
    ]
    if any((row["gpus"] or 0) % 1 for row in values):
        notes.append("GPUs are a mean over the hours where a training went on with another number of them.")
    if statements:
        stated = [_stated(row, footnotes) for row in statements]
        panels.append(Panel(pd.DataFrame(stated), "(b) Published"))
        notes += _contradictions(entry, statements)
    return Table(entry["name"], heading(entry), pd.DataFrame(values), panels, [*notes, *footnotes.lines()])


def _statements(entry: Entry, files: Files) -> list[Published]:
    """What the sources state about the cost of training the models that ran."""
    ran = {model["published"] for model in entry["models"]}
    rows = read_statements(entry, files)
    return [row for row in rows if row["model"] in ran]


def _values(
    entry: Entry, model: dict[str, Any], variant: str, record: Record, statements: Sequence[Published]
) -> dict[str, Any]:
    """A line of the CSV: one training, with the distinct published values of its model."""
    result = record.result
    names = ("hours", "seconds", "tokens", "steps", "gpus", "tokens_per_second", "tokens_per_second_per_gpu")
    theirs = {}
    for quantity, (name, _) in _QUANTITIES.items():
        found = [
            _amount(row)
            for row in statements
            if (row["model"], row["quantity"]) == (model["published"], quantity) and row["variant"] in (None, variant)
        ]
        theirs[f"{name}_published"] = " / ".join(dict.fromkeys(found)) or None
    return {
        "model": model["name"],
        "title": model["title"],
        "variant": variant,
        "kv_cache": "auto",
        **{name: result.get(name) for name in (*names, "loss_first", "loss_last")},
        "device": (result["accelerator"] or record.device) if result else None,
        "missing": None if result else record.why,
        **theirs,
    }


def _cells(row: dict[str, Any], footnotes: Footnotes) -> dict[str, str]:
    if row["missing"]:
        empty = ("Tokens", "Hardware", "Tokens/s", "Tokens/s\na device", "Steps", "First\nloss", "Last\nloss")
        return {
            "Variant": row["variant"],
            "Hours": f"{MISSING} {footnotes.mark(row['missing'])}",
            **dict.fromkeys(empty, MISSING),
        }
    return {
        "Variant": row["variant"],
        "Hours": show(row["hours"], 3),
        "Tokens": f"{row['tokens']:,}",
        "Hardware": f"{row['gpus']:.4g} × {row['device']}" if row["gpus"] else row["device"],
        "Tokens/s": show(row["tokens_per_second"], 3),
        "Tokens/s\na device": show(row["tokens_per_second_per_gpu"] or row["tokens_per_second"], 3),
        "Steps": f"{row['steps']:,}",
        "First\nloss": show(row["loss_first"], 4),
        "Last\nloss": show(row["loss_last"], 4),
    }


def _stated(row: Published, footnotes: Footnotes) -> dict[str, str]:
    named = _QUANTITIES.get(row["quantity"], ("", row["quantity"]))[1]
    return {
        "Model": row["model"],
        "What": named,
        "Value": _amount(row) + (f" {footnotes.mark(row['note'])}" if row.get("note") else ""),
        "Statement": row["text"] or "",
        "Source": row["source"],
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


def _contradictions(entry: Entry, statements: Sequence[Published]) -> list[str]:
    """Where the sources state different values of one thing."""
    notes = []
    for model in entry["models"]:
        for quantity, (_, named) in _QUANTITIES.items():
            rows = [row for row in statements if (row["model"], row["quantity"]) == (model["published"], quantity)]
            different = list(dict.fromkeys(_amount(row) for row in rows))
            if len(different) > 1:
                notes.append(f"The sources do not agree on the {named} of {model['title']}: {enumeration(different)}.")
    return notes


KIND = Kind("table", ("models", "variants"), needs, make)
