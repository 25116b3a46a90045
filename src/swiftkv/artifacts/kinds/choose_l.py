"""Quality before training for every l, and the smallest l that stays within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.drawing import COLUMN, Drawing, headline, legend, line_entry, line_style, new_figure, wide_axis
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.records import Record, read_records
from swiftkv.artifacts.text import heading
from swiftkv.errors import UserError
from swiftkv.section import Positive

STARTS = {"copied": "copied from the teacher", "fitted": "fitted to its keys and values"}


def make(entry: Entry, files: Files) -> Drawing:
    """KL to the teacher over the prefill reduction, one curve a model and start, with the budget and what it chooses."""
    records = [record for record in read_records(entry, files["starts"], "starts") if record.ok]
    if not records:
        raise UserError(f"{entry['name']} has nothing to draw: no start was measured")
    data = pd.concat([starts(record, entry["budget"]) for record in records], ignore_index=True)
    notes = [
        *entry.get("notes", []),
        *dict.fromkeys(f"Text: {record.text}." for record in records if record.text),
        *(sentence(record, entry["budget"]) for record in records),
    ]
    figure = new_figure(COLUMN, 3.0, notes)
    headline(figure, heading(entry))
    axis = figure.subplots()
    handles = []
    groups = data.groupby(["model", "start"], sort=False)
    for number, ((_, start), curve) in enumerate(groups):
        style = line_style(number)
        axis.errorbar(curve["prefill_reduction_percent"], curve["kl"], yerr=curve["kl_stderr"].fillna(0), **style)
        name = f"{curve['title'].iloc[0]}, " if len(records) > 1 else ""
        handles.append(line_entry(f"{name}{STARTS[start]}", **style))
    axis.axhline(entry["budget"], color="0.4", linestyle=(0, (1, 2)), linewidth=1)
    for record in records:
        if (chosen := choose(record, entry["budget"])) is not None:
            axis.plot(100 * chosen["prefill_reduction"], chosen["fitted"]["kl"]["value"], marker="o", markersize=9,
                      markerfacecolor="none", color="black", linestyle="")  # fmt: skip
    handles.append(line_entry(f"budget: {entry['budget']:g} nats", color="0.4", linestyle=(0, (1, 2))))
    axis.set_xlabel("Prefill reduction $(L - l) / L$ (%)")
    axis.set_ylabel("KL to teacher before training\n(nats a token)")
    wide_axis(axis.yaxis, data["kl"])
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    legend(figure, handles, [], notes)
    return Drawing(figure, data)


def choose(record: Record, budget: float) -> Mapping[str, Any] | None:
    """The smallest l whose fitted start has a KL of at most `budget` nats a token; None if no l has."""
    within = [row for row in record.result["layers"] if row["fitted"]["kl"]["value"] <= budget]
    return min(within, key=lambda row: row["num_key_value_layers"], default=None)


def sentence(record: Record, budget: float) -> str:
    """What the budget recommends for a model."""
    title, chosen = record.model["title"], choose(record, budget)
    if chosen is None:
        return f"{title}: no l measured stays within {budget:g} nats a token before training."
    total, layer = record.result["num_hidden_layers"], chosen["num_key_value_layers"]
    return (
        f"{title}: l = {layer} of {total} is the smallest within the budget (circle), a prefill reduction of "
        f"{100 * chosen['prefill_reduction']:.1f} %."
    )


def starts(record: Record, budget: float) -> pd.DataFrame:
    """One row a start and l: KL with its error, top-1 agreement in percent, and whether l is the recommended one."""
    chosen = choose(record, budget)
    rows = [
        {
            "model": record.model["name"],
            "title": record.model["title"],
            "start": start,
            "num_key_value_layers": row["num_key_value_layers"],
            "prefill_reduction_percent": 100 * row["prefill_reduction"],
            "kl": row[start]["kl"]["value"],
            "kl_stderr": row[start]["kl"]["stderr"],
            "top1_agreement": 100 * row[start]["top1_agreement"]["value"],
            "recommended": start == "fitted" and row is chosen,
        }
        for start in STARTS
        for row in record.result["layers"]
    ]
    return pd.DataFrame(rows).astype({"kl_stderr": float})


KIND = ArtifactKind("figure", ("models",), ("starts",), make, own={"budget": Positive}, scored=True)
