"""Draw figures over layers: similarity of layer inputs (Figures 2, left, and A.1), and alignment of early exit (D.1)."""

from __future__ import annotations

import itertools
import textwrap

from pipeline.artifacts import Entry, Files
from pipeline.artifacts.drawing import Drawing, draw_curve, handle, label_ends, looks, new_figure
from pipeline.artifacts.metrics import METRICS, MISSING
from pipeline.artifacts.published import Numbers

# Colors of unchanged models, none of which a variant has; dashes are for prints in gray.
_MODELS = tuple(
    zip(["#4D4D4D", "#117733", "#EE3377", "#332288", "#999933", "#33BBEE"], ["-", "--", "-."] * 2, strict=True)
)
_PUBLISHED = "#000000"


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
    handles = [
        handle("to all later inputs (SimScore)", color="0.4"),
        handle("to the next layer's input alone", color="0.4", linestyle=":", linewidth=1),
    ]
    star = {"linestyle": "", "marker": "*", "markersize": 10, "color": _PUBLISHED, "markerfacecolor": "white"}
    if len(published):
        handles.append(handle("published", **star))
    notes = ["Gray cross: by the paper, SimScore is above 0.5 from about half of the depth on.", *measurements.notes]
    figure = new_figure(2.9, entry, handles, notes)
    axis = figure.subplots()
    axis.axhline(0.5, color="0.75", linewidth=0.8, zorder=0)
    axis.axvline(50, color="0.75", linewidth=0.8, zorder=0)
    ends = []
    for model, (color, dashes) in zip(entry["models"], itertools.cycle(_MODELS), strict=False):
        curve, pair, stars = (rows[rows["model"] == model["name"]] for rows in (scores, pairs, published))
        layers = len(curve) + 1  # the last has no later one
        why = entry["unmeasured"].get(model["name"], {}).get("baseline", "not measured")
        size = f"({layers} layers)" if len(curve) else f"{MISSING} ({why})"
        depth = 100 * curve["at"] / layers
        axis.fill_between(depth, curve["low"], curve["high"], color=color, alpha=0.25, linewidth=0)
        axis.plot(depth, curve["value"], color=color, linestyle=dashes)
        axis.plot(depth, pair["value"], color=color, linestyle=":", linewidth=1)
        place = (depth.iloc[-1], curve["value"].iloc[-1]) if len(curve) else (100, 0.0)
        ends.append((*place, "\n".join(textwrap.wrap(f"{model['title']} {size}", 22)), color))
        if len(stars):
            axis.plot(100 * stars["at"] / layers, stars["value"], **star)
    axis.set(
        xlabel="Depth of the layer, % of all layers",
        ylabel="Cosine similarity",
        xlim=(-2, 102),
        ylim=(min(0.0, scores["value"].min()) - 0.03, 1.03),  # so that no line is cut
    )
    label_ends(axis, ends)
    return Drawing(figure, measurements.data)


def alignment(entry: Entry, files: Files) -> Drawing:
    """Draw the agreement of early exit and full model by its largest probability, and below it the share of positions."""
    measurements = Numbers(entry, files)
    published = measurements.published.dropna(subset="low")
    density, agreement = map(measurements.of, ("bin_percent", "bin_alignment_percent"))
    dotted = {"color": "0.4", "linestyle": (0, (1, 2)), "linewidth": 1}
    bound = {"color": _PUBLISHED, "linewidth": 1.5, "marker": "^"}
    threshold = entry["settings"]["early_exit"]["threshold"]
    handles = [
        handle(f"threshold {threshold:g}", **dotted),
        *(handle(f"published: {text.split(' where')[0]}", **bound) for text in published["text"]),
    ]
    figure = new_figure(3.6, entry, handles, measurements.notes)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    width = 1 / len(density)
    (variant, _), *_ = entry["cases"]
    draw_curve(
        upper, agreement.assign(at=agreement["at"] + width / 2).dropna(subset="value"), looks([variant])[variant]
    )
    upper.set(ylabel=METRICS["bin_alignment_percent"].header, ylim=(0, 105))
    for least in published["low"]:
        upper.plot([threshold, (threshold + 1) / 2, 1], [least] * 3, markevery=[1], **bound)
    lower.bar(density["at"], density["value"], width=width, align="edge", facecolor="0.8", edgecolor="0.55")
    lower.set(
        xlabel="Confidence of the early exit: its largest probability",
        ylabel=METRICS["bin_percent"].header,
        xlim=(0, 1),
    )
    for axis in (upper, lower):
        axis.axvline(threshold, **dotted)
    return Drawing(figure, measurements.data)
