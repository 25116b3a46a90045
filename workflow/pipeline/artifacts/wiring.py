"""The wiring of SwiftKV, drawn from the spec alone: Figure 1 of the paper and of the blog."""

from __future__ import annotations

import pandas as pd

from pipeline.artifacts.drawing import COLUMN, PAGE, Drawing, handle, new_figure
from pipeline.artifacts.labels import heading, variant_label
from pipeline.artifacts.published import Entry, Files
from swiftkv.spec import SwiftKVSpec

_COMPUTED = {"facecolor": "#0072B2", "edgecolor": "white"}
_SKIPPED = {"facecolor": "white", "edgecolor": "0.55", "hatch": "//////"}
_CACHE = {"facecolor": "#E69F00", "edgecolor": "white"}
_SOURCE = "#000000"
# Middle and width of each column of boxes, in a panel that is 1 wide, and where the shared input runs upward.
_PROMPT, _KEPT, _GENERATED, _RISER = (0.24, 0.2), (0.57, 0.14), (0.9, 0.2), 0.42


def make(entry: Entry, files: Files) -> Drawing:
    """One panel a variant: layers that a prompt token computes, the cache of each group, layers of a generated token.

    The CSV has a row a variant and layer, counted from 0. `computed_for_prompt` says whether prompt tokens go through the
    layer; the last of them always does. `kv_from_layer` is the layer whose input, the output of the one before, its keys and
    values are projected from. `cache_owner` is the layer whose cache it reads: the first of its AcrossKV group, or itself.
    """
    (model,), total, specs = entry["models"], entry["num_hidden_layers"], {}
    for variant, _ in entry["cases"]:
        fields = entry["specs"][model["name"]][variant]
        specs[variant] = SwiftKVSpec(**fields) if fields else SwiftKVSpec(total, total)
    handles = [
        handle("computed", box=True, **_COMPUTED),
        handle("skipped", box=True, **_SKIPPED),
        handle("keys and values kept", box=True, **_CACHE),
        handle("projected from the input of the first skipped layer", color=_SOURCE, linewidth=2),
    ]
    rows = -(-len(specs) // 3)
    size = (COLUMN, 4.3) if len(specs) == 1 else (PAGE, 1.0 + 3.2 * rows)
    figure = new_figure(*size, heading(entry), handles, entry.get("notes", []))
    axes = figure.subplots(rows, -(-len(specs) // rows), squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, (variant, spec) in zip(axes, specs.items(), strict=False):
        axis.set_title(variant_label(entry["specs"][model["name"]][variant]))
        _panel(axis, spec)
    data = [
        {
            "model": model["name"],
            "title": model["title"],
            "variant": variant,
            "layer": layer,
            "computed_for_prompt": layer < spec.num_key_value_layers,
            "kv_from_layer": min(layer, spec.num_key_value_layers),
            "cache_owner": spec.owner(layer),
        }
        for variant, spec in specs.items()
        for layer in range(total)
    ]
    return Drawing(figure, pd.DataFrame(data))


def _panel(axis, spec: SwiftKVSpec) -> None:
    total, first = spec.num_hidden_layers, spec.num_key_value_layers
    thin = 0.6 if total <= 40 else 0.35
    groups = [*(range(layer, layer + 1) for layer in range(first)), *spec.groups]

    def boxes(column: tuple[float, float], name: str, layers: list[range], style: dict) -> None:
        heights = [len(each) - 0.12 for each in layers]
        middle, width = column
        axis.bar(middle, heights, width, [each.start + 0.06 for each in layers], linewidth=thin, **style)
        axis.text(middle, 1.01 * total, name, ha="center", va="bottom", fontsize=7)

    def arrows(start: float, column: tuple[float, float], heights: list[float], width: float, color: str) -> None:
        end = column[0] - column[1] / 2
        axis.hlines(heights, start, end, color=color, linewidth=width, zorder=0.5)
        tips = {"linestyle": "", "marker": ">", "markersize": 3.4 * thin, "markeredgewidth": 0}
        axis.plot([end - 0.012] * len(heights), heights, color=color, **tips)

    single = [range(layer, layer + 1) for layer in range(total)]
    boxes(_PROMPT, "prompt\ntokens", single[:first], _COMPUTED)
    boxes(_PROMPT, "", single[first:], _SKIPPED)
    boxes(_KEPT, "KV\ncache", groups, _CACHE)
    boxes(_GENERATED, "generated\ntokens", single, _COMPUTED)
    middles = [layer + 0.5 for layer in range(total)]
    right = [middle + width / 2 for middle, width in (_PROMPT, _KEPT)]
    arrows(right[0], _KEPT, middles[:first], thin, "0.35")
    arrows(right[1], _GENERATED, middles, thin, "0.35")
    if spec.groups:
        inputs = [(group.start + group.stop) / 2 for group in spec.groups]
        arrows(_RISER, _KEPT, inputs, 2 * thin, _SOURCE)
        axis.plot((right[0], _RISER, _RISER), (first, first, inputs[-1]), color=_SOURCE, linewidth=4 * thin)
    for low, high in ((0, first), (first, total)):
        if low < high:
            axis.plot(
                [0.1, 0.08, 0.08, 0.1], [low + 0.1, low + 0.1, high - 0.1, high - 0.1], color="0.2", linewidth=0.7
            )
            axis.text(0.06, (low + high) / 2, f"{low} – {high - 1}", rotation=90, ha="right", va="center", fontsize=7)
    below = f"prompt: {first} of {total} layers; {len(groups)} of {total} caches"
    axis.text(0.5, -0.02 * total, below, ha="center", va="top", fontsize=7)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.06 * total, 1.11 * total))
