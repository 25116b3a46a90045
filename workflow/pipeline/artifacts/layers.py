"""Draw figures over layers: similarity of layer inputs (Figures 2, left, and A.1), and alignment of early exit (D.1)."""

from __future__ import annotations

from matplotlib import cycler

from pipeline.artifacts import Entry, Files
from pipeline.artifacts.drawing import COLUMN, Drawing, draw_curve, handle, look, new_figure
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import METRICS, MISSING
from pipeline.artifacts.published import Numbers

# Colors of models are Okabe and Ito's without yellow, which is too light for lines; dashes and markers are for prints in gray.
_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
_LOOKS = cycler(
    color=_COLORS, marker=list("os^DvPX"), linestyle=["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), "-", "--"]
)


def similarity(entry: Entry, files: Files) -> Drawing:
    """Draw SimScore (Eq. 1) over depth; dotted, the similarity to the input of the next layer alone.

    Layer l counts from 0; its SimScore is the mean cosine similarity between its input and the inputs of layers l+1 to L-1,
    so there is none for the last layer. Stars are values that the paper states of this very model.
    """
    measurements = Numbers(entry, files)
    published = measurements.published
    scores, pairs = map(measurements.of, ("simscore", "next_similarity"))
    # Others are bounds; layers of the sources count from 1, and a model rewired there projects from the input of the next.
    published = published[(published["metric"] == "simscore") & published["value"].notna()]
    title = heading(entry | {"models": entry["models"] if len(entry["models"]) == 1 else []})
    figure = new_figure(COLUMN, 2.5 + 0.15 * len(entry["models"]), title, notes=measurements.notes)
    axis = figure.subplots()
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    for model, style in zip(entry["models"], _LOOKS(), strict=False):
        curve, pair, stars = (rows[rows["model"] == model["name"]] for rows in (scores, pairs, published))
        layers = len(curve) + 1  # the last has no later one
        why = entry["unmeasured"].get(model["name"], {}).get("baseline", "not measured")
        size = f"($L$ = {layers})" if len(curve) else f"{MISSING} ({why})"
        depth = 100 * curve["at"] / layers
        axis.fill_between(depth, curve["low"], curve["high"], color=style["color"], alpha=0.25, linewidth=0)
        axis.plot(depth, curve["value"], markevery=1 + layers // 40, label=f"{model['title']} {size}", **style)
        axis.plot(depth, pair["value"], color=style["color"], linestyle=":", linewidth=0.8)
        if len(stars):
            star = {"linestyle": "", "marker": "*", "markersize": 8, "color": "black", "markerfacecolor": "white"}
            axis.plot(100 * stars["at"] / layers, stars["value"], label="published", **star)
    axis.plot([], [], color="0.4", linestyle=":", linewidth=0.8, label="to the next layer's input alone")
    axis.set(
        xlabel="Depth of layer $l$ of $L$: $l / L$ (%)",
        ylabel=METRICS["simscore"].header,
        xlim=(-2, 102),
        ylim=(min(0.0, scores["value"].min()) - 0.03, 1.03),  # so that no marker is cut
    )
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1))
    return Drawing(figure, measurements.data)


def alignment(entry: Entry, files: Files) -> Drawing:
    """Draw the agreement of early exit and full model by its largest probability, and below it the share of positions."""
    measurements = Numbers(entry, files)
    published = measurements.published.dropna(subset="low")
    density, agreement = map(measurements.of, ("bin_percent", "bin_alignment_percent"))
    dotted = {"color": "0.4", "linestyle": (0, (1, 2)), "linewidth": 1}
    solid = {"color": _COLORS[1], "linewidth": 2}
    threshold = entry["settings"]["early_exit"]["threshold"]
    handles = [
        handle(f"threshold {threshold:g}", **dotted),
        *(handle(f"published: {text.split(' where')[0]}", **solid) for text in published["text"]),
    ]
    figure = new_figure(COLUMN, 3.3, heading(entry), handles, measurements.notes)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    width = 1 / len(density)
    draw_curve(
        upper, agreement.assign(at=agreement["at"] + width / 2).dropna(subset="value"), look(entry["cases"][0][0])
    )
    upper.set(ylabel=METRICS["bin_alignment_percent"].header, ylim=(0, 105))
    upper.hlines(published["low"], threshold, 1, **solid)
    lower.bar(density["at"], density["value"], width=width, align="edge", facecolor="0.8", edgecolor="0.55")
    lower.set(xlabel="Largest probability of the early exit", ylabel=METRICS["bin_percent"].header, xlim=(0, 1))
    for axis in (upper, lower):
        axis.axvline(threshold, **dotted)
    return Drawing(figure, measurements.data)
