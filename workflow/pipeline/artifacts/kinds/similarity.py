"""Similarity of layer inputs (Eq. 1) over depth, and of every pair of layers: Figures 2 (left) and A.1."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import pandas as pd

from pipeline.artifacts.drawing import COLUMN, PAGE, Drawing, headline, line_style, new_figure, remarks
from pipeline.artifacts.inputs import players
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import MISSING, Published, Record, read_records, read_statements
from pipeline.statistics import ERRORS
from swiftkv.section import Text, Unique

ROLES = Annotated[list[Text], Unique]
Models = Sequence[Mapping[str, Any]]


def similar(config: Config, models: Models) -> dict[str, Any]:
    """What an entry shows of the similarity of these models: themselves, and why one cannot have it, by its name."""
    reasons = {model["name"]: config.models[model["name"]].unmeasured("quality") for model in models}
    return {"similar_models": models, "no_similarity": {name: reason for name, reason in reasons.items() if reason}}


def _extra(config: Config, entry: Entry) -> dict[str, Any]:
    small = [model["name"] for model in entry["models"]]
    large = [model for model in players(config, entry.get("large_models", [])) if model["name"] not in small]
    return {"large_models": large, **similar(config, [*entry["models"], *large])}


def make(entry: Entry, files: Files) -> Drawing:
    """SimScore over depth, and with `matrices` the similarity of every pair of layer inputs below."""
    groups = [("small", entry["models"])] + ([("large", entry["large_models"])] if entry["large_models"] else [])
    every = entry["similar_models"]
    records = read_similarity(entry, files)
    curves = {name: simscores(models, records, read_statements(entry, files)) for name, models in groups}
    measured = [records[model["name"]] for model in every if model["name"] in records]
    matrices, single = bool(entry.get("matrices") and measured), len(every) == 1
    notes = entry.get("notes", [])
    if matrices:
        columns = max(2, min(3, len(measured)))
        below = 2.2 * -(-len(measured) // columns)
        figure = new_figure(PAGE, 2.8 if single else 3.0 + below, notes)
        sides = {"width_ratios": (1.15, 1)} if single else {"height_ratios": (2.8, below)}
        top, bottom = figure.subfigures(*((1, 2) if single else (2, 1)), **sides)
        _matrices(bottom, measured, 1 if single else columns)
    else:
        longest = max(len(models) for _, models in groups)
        figure = top = new_figure(COLUMN if len(groups) == 1 else PAGE, 2.5 + 0.15 * longest, notes)
    for axis, (name, models) in zip(top.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        above = {"small": "Smaller models", "large": "Larger models"}[name] if len(groups) > 1 else None
        draw_simscores(axis, entry, models, curves[name], above)
    title = f"{entry['title']} ({entry['label']})"
    headline(figure, f"{every[0]['title']}: {title}" if single else title[0].upper() + title[1:])
    remarks(figure, notes)
    frames = [data.assign(panel=f"simscore {name}" if len(groups) > 1 else "simscore") for name, data in curves.items()]
    if matrices:
        frames.append(_pairs(measured).assign(panel="pairwise"))
    return Drawing(figure, pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True))


def read_similarity(entry: Entry, files: Files) -> dict[str, Record]:
    """Similarity records that have numbers, by model."""
    records = read_records(entry, files.get("similarity", ()), "similarity")
    return {record.model["name"]: record for record in records if record.ok}


def simscores(models: Models, records: Mapping[str, Record], claims: Iterable[Published] = ()) -> pd.DataFrame:
    """What the curves show: one row a model and layer.

    Layer l counts from 0; `simscore` is the mean cosine similarity between its input and the inputs of layers l+1 to
    L-1 (Eq. 1), so there is none for the last layer. `depth_percent` is l / L. `simscore_published` is what the paper
    states of this very model, at the layer whose input a model rewired there would project from.
    """
    exact = [row for row in claims if row["quantity"] == "simscore" and row["low"] == row["high"]]  # others are bounds
    stated = {(row["model"], row.get("layer")): row["low"] for row in exact}
    columns = [
        "model",
        "title",
        "num_hidden_layers",
        "layer",
        "depth_percent",
        "simscore",
        "simscore_stderr",
        "simscore_published",
    ]
    rows = []
    for model in (model for model in models if model["name"] in records):
        record = records[model["name"]]
        head, total = (model["name"], record.model["title"]), record.result["num_hidden_layers"]
        scores = record.result["simscore"]
        errors = record.result.get("simscore_stderr") or [None] * len(scores)
        for layer, (score, error) in enumerate(zip(scores, errors, strict=True)):
            if score is not None:
                published = stated.get((model["published"], layer))
                rows.append((*head, total, layer, 100 * layer / total, score, error, published))
    return pd.DataFrame(rows, columns=columns).astype({"simscore_stderr": float})


def draw_simscores(axis, entry: Entry, models: Models, data: pd.DataFrame, above: str | None = None) -> None:
    """SimScore over depth on one axis, one curve a model; a model without a measurement is named with its reason."""
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    stated = data.dropna(subset="simscore_published")
    for number, model in enumerate(models):
        curve = data[data["model"] == model["name"]]
        appearance = line_style(number)
        if not len(curve):
            why = entry["no_similarity"].get(model["name"], "not measured")
            label = "\n".join(textwrap.wrap(f"{model['title']}: {MISSING} ({why})", 52))
            axis.plot([], [], label=label, **appearance)
            continue
        reach = ERRORS * curve["simscore_stderr"]
        if reach.notna().any():
            ends = (curve["simscore"] - reach, curve["simscore"] + reach)
            axis.fill_between(curve["depth_percent"], *ends, color=appearance["color"], alpha=0.25, linewidth=0)
        axis.plot(
            curve["depth_percent"],
            curve["simscore"],
            markevery=max(1, len(curve) // 8),
            label=f"{curve['title'].iloc[0]} ($L$ = {curve['num_hidden_layers'].iloc[0]})",
            **appearance,
        )
    if len(stated):
        label = f"published ({', '.join(stated['title'].unique())})"
        axis.plot(stated["depth_percent"], stated["simscore_published"], linestyle="", marker="*", markersize=8,
                  color="black", markerfacecolor="white", label=label)  # fmt: skip
    axis.set_xlim(-2, 102)  # so that no marker is cut
    axis.set_ylim((min(0.0, data["simscore"].min()) if len(data) else 0) - 0.03, 1.03)
    axis.set_xlabel("Depth of layer $l$ of $L$: $l / L$ (%)")
    axis.set_ylabel("SimScore (cosine similarity)")
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), title=above, alignment="left")


def _pairs(records: Sequence[Record]) -> pd.DataFrame:
    """What the heat maps show: mean cosine similarity of the inputs of every two layers, one row a pair."""
    rows = [
        (record.model["name"], record.model["title"], layer, other, value)
        for record in records
        for layer, line in enumerate(record.result["pairwise"])
        for other, value in enumerate(line)
    ]
    return pd.DataFrame(rows, columns=["model", "title", "layer", "other_layer", "similarity"])


def _matrices(area, records: Sequence[Record], columns: int) -> None:
    axes = area.subplots(-(-len(records) // columns), columns, squeeze=False)
    matrices = [record.result["pairwise"] for record in records]
    lowest = min(0.0, *(value for matrix in matrices for line in matrix for value in line))
    image = None
    for axis in axes.flat[len(records) :]:
        axis.set_visible(False)
    for axis, record, matrix in zip(axes.flat, records, matrices, strict=False):
        image = axis.imshow(matrix, cmap="cividis", vmin=lowest, vmax=1, origin="lower", interpolation="nearest")
        axis.set_title(record.model["title"])
        axis.set_xlabel("Layer")
        axis.set_ylabel("Layer")
        axis.spines[:].set_visible(True)
    area.colorbar(image, ax=axes, label="Mean cosine similarity", shrink=0.9, aspect=30)


KIND = ArtifactKind(
    "figure",
    ("models",),
    ("similarity",),
    make,
    own={"large_models": ROLES, "matrices": bool},
    optional=("large_models", "matrices"),
    extra=_extra,
)
