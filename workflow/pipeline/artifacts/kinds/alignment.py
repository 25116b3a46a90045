"""How far the early exit can be trusted: density of its confidence, and agreement with the full model by confidence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.artifacts.columns import measured
from pipeline.artifacts.drawing import (
    COLORS,
    COLUMN,
    Drawing,
    box_entry,
    headline,
    legend,
    line_entry,
    look,
    new_figure,
)
from pipeline.artifacts.kind import ArtifactKind, Entry, Files
from pipeline.artifacts.kinds import early_exit
from pipeline.artifacts.records import Record, read_records, read_statements
from pipeline.artifacts.text import heading
from swiftkv.errors import UserError


def make(entry: Entry, files: Files) -> Drawing:
    """Bars: share of positions by the early exit's largest probability; points: how often it agrees with the full model."""
    (model,), ((variant, _),) = entry["models"], entry["cases"]
    record = read_records(entry, files.get("early_exit", ()), "early_exit").find(model["name"], variant)
    if not record.ok:
        raise UserError(f"{entry['name']} has nothing to draw: {record.why}")
    data = _frame(record)
    bounds = [row for row in read_statements(entry, files) if row["low"]]
    notes = entry.get("notes", [])
    figure = new_figure(COLUMN, 3.3, notes)
    headline(figure, heading(entry))
    density = figure.subplots()
    width = data["confidence_to"] - data["confidence_from"]
    middle = data["confidence_from"] + width / 2
    gray = {"facecolor": "0.8", "edgecolor": "0.55", "linewidth": 0.6}
    density.bar(middle, data["density_percent"], width=width, **gray)
    density.set_xlabel("Largest probability of the early exit")
    density.set_ylabel("Positions (%)")
    density.set_xlim(0, 1)
    agreement = density.twinx()
    agreement.spines["right"].set_visible(True)
    appearance = look(variant)
    style = {"color": appearance.color, "marker": appearance.marker, "linestyle": appearance.line}
    known = data["alignment_percent"].notna()
    error = data["alignment_percent_stderr"][known].fillna(0)
    agreement.errorbar(middle[known], data["alignment_percent"][known], yerr=error, capsize=2, **style)
    agreement.set_ylabel("Agreement (%)")
    agreement.set_ylim(0, 105)
    agreement.axvline(entry["threshold"], color="0.4", linestyle=(0, (1, 2)), linewidth=1)
    handles = [
        box_entry("positions", **gray),
        line_entry("agreement with full model", **style),
        line_entry(f"threshold {entry['threshold']:g}", color="0.4", linestyle=(0, (1, 2))),
    ]
    stated = []
    for row in bounds:
        agreement.hlines(row["low"], entry["threshold"], 1, color=COLORS[1], linewidth=2)
        stated.append(f"{row['text']} (orange; {row['note']})")
    legend(figure, handles, stated, notes)
    return Drawing(figure, data)


def _frame(record: Record) -> pd.DataFrame:
    """What is drawn: one row a bin, its share of all positions and the agreement there, in percent."""
    alignment = record.result["alignment"]
    total = alignment["all"]["positions"]
    rows: list[dict[str, Any]] = []
    for part in alignment["bins"]:
        rows.append(
            {
                "model": record.model["name"],
                "title": record.model["title"],
                "variant": record.variant,
                "kv_cache": "auto",
                "confidence_from": part["confidence_from"],
                "confidence_to": part["confidence_to"],
                "positions": part["positions"],
                "density_percent": 100 * part["positions"] / total,
                **measured("alignment_percent", part["agreement"], 100),
                "missing": None if part["positions"] else "at no position is the early exit this sure",
            }
        )
    frame = pd.DataFrame(rows)
    return frame.astype({"alignment_percent": float, "alignment_percent_stderr": float})


KIND = ArtifactKind(
    "figure",
    ("models", "variants"),
    ("early_exit",),
    make,
    exactly={"models": 1, "cases": 1},
    extra=early_exit.extra,
)
