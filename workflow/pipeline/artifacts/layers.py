"""Figures over layers: similarity of layer inputs (Figures 2, left, and A.1), and how far early exit can be trusted (D.1)."""

from __future__ import annotations

from typing import Any

from pipeline.artifacts.drawing import COLUMN, PAGE, Drawing, draw_curve, handle, look, new_figure
from pipeline.artifacts.frame import row
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import METRICS, MISSING
from pipeline.artifacts.published import Entry, Files, Numbers
from swiftkv.errors import UserError

# Of models: Okabe and Ito's colors without yellow, which is too light for lines; dashes and markers tell them apart in gray.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_CURVES = "curves"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def similarity(entry: Entry, files: Files) -> Drawing:
    """SimScore (Eq. 1) over depth; with `matrices` also the similarity of every pair of layer inputs, of one model that alone.

    Layer l counts from 0; its SimScore is the mean cosine similarity between its input and the inputs of layers l+1 to L-1,
    so there is none for the last layer. Stars are values that the paper states of this very model.
    """
    shown = Numbers(entry, files)
    matrices = [record for record in shown.records if record.ok and entry.get("matrices")]
    shown.add(
        row(record, "pairwise", value, at=layer, against=f"layer {other}")
        for record in matrices
        for layer, line in enumerate(record.result["pairwise"])
        for other, value in enumerate(line)
    )
    alone = len(matrices) == len(entry["models"]) == 1
    titles, across = [record.model["title"] for record in matrices], min(3, len(matrices)) or 1
    lines = [titles[place : place + across] for place in range(0, len(titles), across)]
    mosaic = [line + ["."] * (across - len(line)) for line in lines]
    heights = [2.4 if across > 1 else 2.9] * len(mosaic)
    if not alone:
        mosaic.insert(0, [_CURVES] * across)
        heights.insert(0, 2.5 + 0.15 * len(entry["models"]))
    title = heading(entry | {"models": entry["models"] if len(entry["models"]) == 1 else []})
    figure = new_figure(PAGE if across > 1 else COLUMN, sum(heights), title, notes=shown.notes)
    axes = figure.subplot_mosaic(mosaic, height_ratios=heights)
    if not alone:
        _simscores(axes.pop(_CURVES), shown)
    lowest = min(0.0, shown.rows["value"][shown.rows["metric"] == "pairwise"].min())
    for axis, record in zip(axes.values(), matrices, strict=True):
        image = axis.imshow(record.result["pairwise"], cmap="cividis", vmin=lowest, vmax=1, origin="lower")
        axis.set(title=record.model["title"], xlabel="Layer", ylabel="Layer")
        axis.spines[:].set_visible(True)
    if matrices:
        figure.colorbar(image, ax=[*axes.values()], label="Mean cosine similarity", shrink=0.9, aspect=30)
    return Drawing(figure, shown.data)


def _simscores(axis, shown: Numbers) -> None:
    scores = shown.rows[shown.rows["metric"] == "simscore"]
    # Others are bounds; layers of the sources count from 1, and a model rewired there projects from the input of the next.
    stated = shown.published[(shown.published["metric"] == "simscore") & shown.published["value"].notna()]
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    for number, model in enumerate(shown.entry["models"]):
        curve, mine = (rows[rows["model"] == model["name"]] for rows in (scores, stated))
        looks = {"color": _COLORS, "linestyle": _DASHES, "marker": _MARKERS}
        style: dict[str, Any] = {name: cycle[number % len(cycle)] for name, cycle in looks.items()}
        layers = len(curve) + 1  # the last has no later one
        why = shown.entry["unmeasured"].get(model["name"], {}).get("baseline", "not measured")
        said = f"($L$ = {layers})" if len(curve) else f"{MISSING} ({why})"
        depth, every = 100 * curve["at"] / layers, max(1, len(curve) // 8)
        axis.fill_between(depth, curve["low"], curve["high"], color=style["color"], alpha=0.25, linewidth=0)
        axis.plot(depth, curve["value"], markevery=every, label=f"{model['title']} {said}", **style)
        if len(mine):
            star = {"linestyle": "", "marker": "*", "markersize": 8, "color": "black", "markerfacecolor": "white"}
            axis.plot(100 * mine["at"] / layers, mine["value"], label="published", **star)
    axis.set(xlabel="Depth of layer $l$ of $L$: $l / L$ (%)", ylabel=METRICS["simscore"].header)
    # So that no marker is cut.
    axis.set(xlim=(-2, 102), ylim=(min(0.0, scores["value"].min()) - 0.03, 1.03))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1))


def alignment(entry: Entry, files: Files) -> Drawing:
    """Bars: share of positions by the early exit's largest probability; points: how often it agrees with the full model."""
    shown = Numbers(entry, files)
    if not any(record.ok for record in shown.records):
        why = shown.records[0].why if shown.records else "not measured"
        raise UserError(f"{entry['name']} has nothing to draw: {why}")
    density, agreement = (
        shown.rows[shown.rows["metric"] == metric] for metric in ("bin_percent", "bin_alignment_percent")
    )
    gray = {"facecolor": "0.8", "edgecolor": "0.55", "linewidth": 0.6}
    dotted = {"color": "0.4", "linestyle": (0, (1, 2)), "linewidth": 1}
    stated = {"color": _COLORS[1], "linewidth": 2}
    threshold = entry["settings"]["early_exit"]["threshold"]
    appearance, published = look(entry["cases"][0][0]), shown.published[shown.published["low"].notna()]
    handles = [
        handle("positions", box=True, **gray),
        handle("agreement with full model", **appearance.line),
        handle(f"threshold {threshold:g}", **dotted),
        *(handle(f"published: {text.split(' where')[0]}", **stated) for text in published["text"]),
    ]
    figure = new_figure(COLUMN, 3.3, heading(entry), handles, shown.notes)
    axis = figure.subplots()
    width = 1 / len(density)
    axis.bar(density["at"], density["value"], width=width, align="edge", **gray)
    axis.set(xlabel="Largest probability of the early exit", ylabel=METRICS["bin_percent"].header, xlim=(0, 1))
    other = axis.twinx()
    other.spines["right"].set_visible(True)
    draw_curve(other, agreement.assign(at=agreement["at"] + width / 2).dropna(subset="value"), appearance)
    other.set(ylabel=METRICS["bin_alignment_percent"].header, ylim=(0, 105))
    other.axvline(threshold, **dotted)
    other.hlines(published["low"], threshold, 1, **stated)
    return Drawing(figure, shown.data)
