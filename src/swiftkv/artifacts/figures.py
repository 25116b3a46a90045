"""Figures 2 (left) and A.1: similarity of the layers' inputs; the style of all figures, and writing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from swiftkv.records import atomic_path

# Okabe and Ito's colours without yellow, which is too light for lines; dashes and markers tell them apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {
    "font.size": 8,
    "mathtext.default": "it",
    "mathtext.fontset": "dejavusans",
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}
COLUMN, PAGE = 3.3, 6.75  # inches: a column and a page of a two-column paper
Similarity = Mapping[str, Any]


def simscore_frame(records: Sequence[Similarity]) -> pd.DataFrame:
    """What the curves show: one row a model and layer.

    Layer l counts from 0; `simscore` is the mean cosine similarity between its input and the inputs of layers l+1 to
    L-1 (Eq. 1), so there is none for the last layer. `depth_percent` is l / L.
    """
    rows = [
        {
            "model": record["model"],
            "title": record["title"],
            "num_hidden_layers": record["num_hidden_layers"],
            "layer": layer,
            "depth_percent": 100 * layer / record["num_hidden_layers"],
            "simscore": score,
        }
        for record in records
        for layer, score in enumerate(record["simscore"])
        if score is not None
    ]
    return pd.DataFrame(rows)


def pairwise_frame(records: Sequence[Similarity]) -> pd.DataFrame:
    """What the heat maps show: mean cosine similarity of the inputs of every two layers, one row a pair."""
    rows = [
        {"model": record["model"], "title": record["title"], "layer": layer, "other_layer": other, "similarity": value}
        for record in records
        for layer, line in enumerate(record["pairwise"])
        for other, value in enumerate(line)
    ]
    return pd.DataFrame(rows)


def figure2_left(records: Sequence[Similarity]) -> tuple[Figure, pd.DataFrame]:
    """Figure 2 (left): SimScore over depth, one curve a model; and the plotted data."""
    data = simscore_frame(records)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.2 + 0.15 * len(records)), layout="constrained")
        simscore_curves(figure.subplots(), data)
    return figure, data


def figureA1(records: Sequence[Similarity], large: Sequence[Similarity] = ()) -> tuple[Figure, pd.DataFrame]:
    """Figure A.1: SimScore of smaller and, where there are some, larger models; below, each model's pairwise matrix.

    Returns:
        The figure, and its data: curves and matrices in one frame, told apart by the column `panel`.
    """
    everything = [*records, *large]
    groups = [(name, group) for name, group in (("small", records), ("large", large)) if group]
    curves = [simscore_frame(group).assign(panel=f"simscore {name}") for name, group in groups]
    pairs = pairwise_frame(everything).assign(panel="pairwise")
    with matplotlib.rc_context(STYLE):
        columns = max(2, min(3, len(everything)))
        rows = -(-len(everything) // columns)
        single = len(everything) == 1
        figure = Figure(figsize=(PAGE, 2.6 if single else 2.8 + 2.2 * rows), layout="constrained")
        if single:
            top, bottom = figure.subfigures(1, 2, width_ratios=(1.15, 1))
        else:
            top, bottom = figure.subfigures(2, 1, height_ratios=(2.8, 2.2 * rows))
        for axis, (name, _), data in zip(top.subplots(1, len(groups), squeeze=False)[0], groups, curves, strict=True):
            simscore_curves(axis, data, {"small": "Smaller models", "large": "Larger models"}[name] if large else None)
        _matrices(bottom, everything, 1 if single else columns)
    return figure, pd.concat([*curves, pairs], ignore_index=True)


def write_figure(figure: Figure, data: pd.DataFrame, pdf: str | Path, png: str | Path, csv: str | Path) -> None:
    """Write the picture as PDF and PNG (300 dpi) and its data as CSV; equal input gives equal bytes."""
    with matplotlib.rc_context(STYLE):
        with atomic_path(pdf) as scratch:
            figure.savefig(scratch, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        with atomic_path(png) as scratch:
            figure.savefig(scratch, format="png", dpi=300, metadata={"Software": None})
    with atomic_path(csv) as scratch:
        data.to_csv(scratch, index=False, lineterminator="\n")


def simscore_curves(axis, data: pd.DataFrame, heading: str | None = None) -> None:
    """SimScore over depth on one axis, one curve a model of `simscore_frame`."""
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    for number, (title, curve) in enumerate(data.groupby("title", sort=False)):
        axis.plot(
            curve["depth_percent"],
            curve["simscore"],
            color=COLORS[number % len(COLORS)],
            linestyle=DASHES[number % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
            markevery=max(1, len(curve) // 8),
            label=f"{title} ($L$ = {curve['num_hidden_layers'].iloc[0]})",
        )
    axis.set_xlim(0, 100)
    axis.set_ylim(min(0.0, data["simscore"].min()), 1)
    axis.set_xlabel("Depth of layer $l$ of $L$: $l / L$ (%)")
    axis.set_ylabel("SimScore (cosine similarity)")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), title=heading, alignment="left")


def _matrices(area, records: Sequence[Similarity], columns: int) -> None:
    rows = -(-len(records) // columns)
    axes = area.subplots(rows, columns, squeeze=False)
    lowest = min(0.0, *(value for record in records for line in record["pairwise"] for value in line))
    image = None
    for axis in axes.flat[len(records) :]:
        axis.set_visible(False)
    for axis, record in zip(axes.flat, records, strict=False):
        image = axis.imshow(
            record["pairwise"], cmap="cividis", vmin=lowest, vmax=1, origin="lower", interpolation="nearest"
        )
        axis.set_title(record["title"])
        axis.set_xlabel("Layer")
        axis.set_ylabel("Layer")
        axis.spines[:].set_visible(True)
    area.colorbar(image, ax=axes, label="Mean cosine similarity", shrink=0.9, aspect=30)
