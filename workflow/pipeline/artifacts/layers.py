"""Figures over layers: similarity of layer inputs (Figures 2, left, and A.1), and how far early exit can be trusted (D.1)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    COLORS,
    COLUMN,
    PAGE,
    Drawing,
    draw_curve,
    handle,
    headline,
    legend,
    line_style,
    look,
    new_figure,
    remarks,
)
from pipeline.artifacts.frame import row
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import METRICS, MISSING
from pipeline.artifacts.published import Entry, Files, Numbers
from pipeline.artifacts.records import Record, provenance
from swiftkv.errors import UserError


def similarity(entry: Entry, files: Files) -> Drawing:
    """SimScore (Eq. 1) over depth, and with `matrices` the similarity of every pair of layer inputs.

    Layer l counts from 0; its SimScore is the mean cosine similarity between its input and the inputs of layers l+1 to L-1,
    so there is none for the last layer. With matrices of one model alone the curve is left out: another figure has it.
    """
    shown = Numbers(entry, files)
    records, stated = [record for record in shown.records if record.ok], shown.published
    # Others are bounds; layers of the sources count from 1, and a model rewired there projects from the input of the next.
    stated = stated[(stated["metric"] == "simscore") & stated["value"].notna()]
    titles = {model["name"]: model["title"] for model in entry["models"]}
    small, large = list(titles), []
    groups = [(title, names) for title, names in (("Smaller models", small), ("Larger models", large)) if names]
    matrices = records if entry.get("matrices") else []
    alone = bool(matrices) and len(titles) == 1
    notes = [*entry.get("notes", []), *provenance(records)]
    across = min(3, len(matrices)) or 1
    below = 2.4 * -(-len(matrices) // across)
    curves = 0 if alone else 2.5 + 0.15 * max(len(names) for _, names in groups)
    figure = new_figure(
        PAGE if len(groups) > 1 or (matrices and not alone) else COLUMN, curves + below * bool(matrices), notes
    )
    top: Any = figure
    if matrices:
        heights = [size for size in (curves, below) if size]
        areas = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        top = areas[0]
        _matrices(areas[-1], matrices, across)
        shown.add(list(_pairs(matrices)))
    if not alone:
        axes = top.subplots(1, len(groups), squeeze=False)[0]
        for axis, (title, names) in zip(axes, groups, strict=True):
            _simscores(
                axis,
                entry,
                {name: titles[name] for name in names},
                shown.rows,
                stated,
                title if len(groups) > 1 else None,
            )
    headline(figure, heading(entry) if len(titles) == 1 else heading(entry | {"models": []}))
    remarks(figure, notes)
    return Drawing(figure, shown.data)


def _simscores(axis, entry: Entry, titles: Mapping[str, str], rows: pd.DataFrame, stated: pd.DataFrame, above) -> None:
    """Curves over depth with their bands; stars are values that the paper states of this very model."""
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    for number, (name, title) in enumerate(titles.items()):
        curve, style = rows[(rows["model"] == name) & (rows["metric"] == "simscore")], line_style(number)
        if not len(curve):
            why = entry["unmeasured"].get(name, "not measured")
            axis.plot([], [], label="\n".join(textwrap.wrap(f"{title}: {MISSING} ({why})", 52)), **style)
            continue
        layers = len(curve) + 1  # the last has no later one
        depth = 100 * curve["at"] / layers
        axis.fill_between(depth, curve["low"], curve["high"], color=style["color"], alpha=0.25, linewidth=0)
        every = max(1, len(curve) // 8)
        axis.plot(depth, curve["value"], markevery=every, label=f"{title} ($L$ = {layers})", **style)
        if len(mine := stated[stated["model"] == name]):
            star = {"linestyle": "", "marker": "*", "markersize": 8, "color": "black", "markerfacecolor": "white"}
            axis.plot(100 * mine["at"] / layers, mine["value"], label="published", **star)
    lowest = rows[rows["metric"] == "simscore"]["value"].min()
    axis.set_xlim(-2, 102)  # so that no marker is cut
    axis.set_ylim(min(0.0, lowest if pd.notna(lowest) else 0.0) - 0.03, 1.03)
    axis.set_xlabel("Depth of layer $l$ of $L$: $l / L$ (%)")
    axis.set_ylabel(METRICS["simscore"].header)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), title=above, alignment="left")


def _pairs(records: Sequence[Record]):
    """Mean cosine similarity of the inputs of every two layers; `against` is the other layer."""
    for record in records:
        for layer, line in enumerate(record.result["pairwise"]):
            for other, value in enumerate(line):
                yield row(record, "pairwise", value, at=layer, against=f"layer {other}")


def _matrices(area, records: Sequence[Record], columns: int) -> None:
    axes = area.subplots(-(-len(records) // columns), columns, squeeze=False)
    lowest = min(0.0, *(value for record in records for line in record.result["pairwise"] for value in line))
    image = None
    for axis in axes.flat[len(records) :]:
        axis.set_visible(False)
    for axis, record in zip(axes.flat, records, strict=False):
        look = {"cmap": "cividis", "vmin": lowest, "vmax": 1, "origin": "lower", "interpolation": "nearest"}
        image = axis.imshow(record.result["pairwise"], **look)
        axis.set_title(record.model["title"])
        axis.set_xlabel("Layer")
        axis.set_ylabel("Layer")
        axis.spines[:].set_visible(True)
    area.colorbar(image, ax=axes, label="Mean cosine similarity", shrink=0.9, aspect=30)


def alignment(entry: Entry, files: Files) -> Drawing:
    """Bars: share of positions by the early exit's largest probability; points: how often it agrees with the full model."""
    shown = Numbers(entry, files)
    records, rows = shown.records, shown.rows
    if not records or not records[0].ok:
        why = records[0].why if records else "not measured"
        raise UserError(f"{entry['name']} has nothing to draw: {why}")
    density, agreement = (rows[rows["metric"] == name] for name in ("bin_percent", "bin_alignment_percent"))
    notes = [*entry.get("notes", []), *provenance(records)]
    figure = new_figure(COLUMN, 3.3, notes)
    headline(figure, heading(entry))
    axis = figure.subplots()
    width = 1 / len(density)
    gray = {"facecolor": "0.8", "edgecolor": "0.55", "linewidth": 0.6}
    axis.bar(density["at"] + width / 2, density["value"], width=width, **gray)
    axis.set_xlabel("Largest probability of the early exit")
    axis.set_ylabel(METRICS["bin_percent"].header)
    axis.set_xlim(0, 1)
    other, style = axis.twinx(), look(entry["cases"][0][0])
    other.spines["right"].set_visible(True)
    draw_curve(other, agreement.assign(at=agreement["at"] + width / 2), style)
    other.set_ylabel(METRICS["bin_alignment_percent"].header)
    other.set_ylim(0, 105)
    other.axvline(entry["threshold"], color="0.4", linestyle=(0, (1, 2)), linewidth=1)
    handles = [
        handle("positions", box=True, **gray),
        handle("agreement with full model", **style.line),
        handle(f"threshold {entry['threshold']:g}", color="0.4", linestyle=(0, (1, 2))),
    ]
    for line in shown.published[shown.published["low"].notna()].to_dict("records"):
        other.hlines(line["low"], entry["threshold"], 1, color=COLORS[1], linewidth=2)
        handles.append(handle(f"published: {line['text'].split(' where')[0]}", color=COLORS[1], linewidth=2))
    legend(figure, handles, notes)
    return Drawing(figure, shown.data)
