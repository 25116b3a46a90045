"""Draw the wiring of SwiftKV from the spec alone: Figure 1 of the paper and of the blog."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd

from pipeline.artifacts import Content, Entry, Files
from pipeline.artifacts.drawing import Drawing, handle, new_figure
from pipeline.artifacts.labels import skipped_label
from swiftkv.spec import SwiftKVSpec

# None of these colors is a variant's.
_COMPUTED = {"facecolor": "#44546A", "edgecolor": "white"}
_SKIPPED = {"facecolor": "white", "edgecolor": "0.55", "hatch": "//////"}
_CACHE = {"facecolor": "#E8C872", "edgecolor": "white"}
_SOURCE = "#000000"
# Middle and width of each column of boxes, in a panel that is 1 wide, and where the shared input runs upward.
_PROMPT, _KEPT, _GENERATED, _RISER = (0.24, 0.2), (0.57, 0.14), (0.9, 0.2), 0.42


def make(entry: Entry, files: Files) -> Drawing:
    """Draw a panel a variant: layers that a prompt token computes, the cache of each group, layers of a generated token.

    The CSV has a row a variant and layer, counted from 0. `computed_for_prompt` says whether prompt tokens go through the
    layer; the last of them always does. `kv_from_layer` is the layer whose input, the output of the one before, its keys and
    values are projected from. `cache_owner` is the layer whose cache it reads: the first of its AcrossKV group, or itself.
    """
    (model,), total, specs = entry["models"], entry["num_hidden_layers"], {}
    fields = entry["specs"][model["name"]]
    for variant, _ in entry["cases"]:
        specs[variant] = SwiftKVSpec(**fields[variant]) if fields[variant] else SwiftKVSpec(total, total)
    handles = [
        handle("computed", box=True, **_COMPUTED),
        handle("skipped", box=True, **_SKIPPED),
        handle("keys and values kept", box=True, **_CACHE),
        handle("keys and values from one input", color=_SOURCE, linewidth=2),
    ]
    rows, trained = -(-len(specs) // 3), len(specs) == 1 and specs[variant].groups
    figure = new_figure(3.5 * rows, entry, handles, ["Layers run from bottom to top.", *entry.get("notes", [])])
    columns = -(-len(specs) // rows) + bool(trained)
    for number, (variant, spec) in enumerate(specs.items(), 1):
        axis = figure.add_subplot(rows, columns, number)
        axis.set_title(textwrap.fill(skipped_label(fields[variant]), 28 if columns > 2 else 48))
        _panel(axis, spec)
    if trained:
        _distillation(figure.add_subplot(1, 2, 2))
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


def concept(entry: Entry, files: Files) -> Drawing:
    """Draw the idea on six layers: with SwiftKV a prompt stops after three of them, and its answer runs all."""
    specs = {"Ordinary transformer": SwiftKVSpec(6, 6), "SwiftKV": SwiftKVSpec(6, 3)}
    handles = [
        handle("computed", box=True, **_COMPUTED),
        handle("skipped", box=True, **_SKIPPED),
        handle("keys and values", box=True, **_CACHE),
        handle("new projections, trained", color=_SOURCE, linewidth=2),
    ]
    figure = new_figure(2.7, entry, handles)
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for axis, (name, spec) in zip(figure.subplots(1, 2), specs.items(), strict=True):
        _panel(axis, spec)
        axis.set_title(name, weight="bold")
        for layer in range(6):
            computed = [_GENERATED] + [_PROMPT] * (layer < spec.num_key_value_layers)
            for middle, _ in computed:
                axis.text(middle, layer + 0.5, f"layer {layer + 1}", color="white", ha="center", va="center")
                if layer + 1 < (6 if middle == _GENERATED[0] else spec.num_key_value_layers):
                    ends = {"xy": (middle, layer + 1.12), "xytext": (middle, layer + 0.88)}
                    axis.annotate("", **ends, arrowprops={"arrowstyle": "-|>", "color": "0.35", "linewidth": 0.8})
            if layer >= spec.num_key_value_layers:
                axis.text(_PROMPT[0], layer + 0.5, "skipped", color="0.4", ha="center", va="center", bbox=blank)
            axis.text(_KEPT[0], layer + 0.5, "K, V", ha="center", va="center")
        axis.set_yticks([])
        names = ["prompt\n(thousands\nof tokens)", "KV\ncache", "answer\n(one token\nat a time)"]
        axis.set_xticks([_PROMPT[0], _KEPT[0], _GENERATED[0]], names)
        axis.tick_params(length=0, top=False, labeltop=False, labelbottom=True)
        axis.set_xlabel("")
    return Drawing(figure, pd.DataFrame({"variant": specs.keys(), "prompt_layers": [6, 3], "layers": [6, 6]}))


def _distillation(axis) -> None:
    """Draw how a student learns from its teacher: the paper's Figure 1, right."""
    axis.set(xlim=(0, 1), ylim=(-0.06, 1.05), title="training by distillation")
    axis.axis("off")

    def box(x: float, y: float, text: str, style: Content) -> None:
        axis.text(x, y, text, ha="center", va="center", bbox={"boxstyle": "round,pad=0.4", **style})

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.35"})

    plain, frozen = {"facecolor": "white", "edgecolor": "0.35"}, {"facecolor": "0.92", "edgecolor": "0.35"}
    for x, bottom, top in ((0.22, 0.21, 0.53), (0.76, 0.15, 0.59)):
        arrow((0.49, 0.04), (x, bottom))
        arrow((x, top), (x, 0.68))
        arrow((x, 0.78), (0.49, 0.9))
    box(0.49, 0, "the same chats", plain)
    box(0.22, 0.38, "teacher:\nunchanged model,\nfrozen", frozen)
    box(
        0.76,
        0.38,
        "student: SwiftKV\ntrained: $W_q$, $W_k$, $W_v$\nof skipped layers,\nall else frozen",
        plain | {"linewidth": 2},
    )
    box(0.22, 0.73, "logits", plain)
    box(0.76, 0.73, "logits", plain)
    box(0.49, 0.96, "KL loss: student's to teacher's", plain)


def _panel(axis, spec: SwiftKVSpec) -> None:
    total, first = spec.num_hidden_layers, spec.num_key_value_layers
    thin = 0.6 if total <= 40 else 0.35
    single = [range(layer, layer + 1) for layer in range(total)]
    caches = [*single[:first], *spec.groups]

    def boxes(column: tuple[float, float], layers: Sequence[range], style: Content) -> None:
        bottoms, heights = [each.start + 0.06 for each in layers], [len(each) - 0.12 for each in layers]
        axis.bar(column[0], heights, column[1], bottoms, linewidth=thin, **style)

    def arrows(
        start: float, column: tuple[float, float], layers: Sequence[range], width: float = thin, color: str = "0.35"
    ) -> None:
        end, heights = column[0] - column[1] / 2 - 0.012, [(each.start + each.stop) / 2 for each in layers]
        tips = {"marker": ">", "markevery": [1], "markersize": 3.4 * thin, "markeredgewidth": 0}
        axis.plot((start, end), (heights, heights), color=color, linewidth=width, **tips)

    boxes(_PROMPT, single[:first], _COMPUTED)
    boxes(_PROMPT, single[first:], _SKIPPED)
    boxes(_KEPT, caches, _CACHE)
    boxes(_GENERATED, single, _COMPUTED)
    right = [middle + width / 2 for middle, width in (_PROMPT, _KEPT)]
    arrows(right[0], _KEPT, single[:first])
    arrows(right[1], _GENERATED, single)
    if spec.groups:
        arrows(_RISER, _KEPT, spec.groups, 2 * thin, _SOURCE)
        top = (spec.groups[-1].start + total) / 2
        axis.plot((right[0], _RISER, _RISER), (first, first, top), color=_SOURCE, linewidth=4 * thin)
    parts = [part for part in ((0, first), (first, total)) if part[0] < part[1]]
    names = [f"layers\n{low}–{high - 1}" for low, high in parts]
    axis.set_yticks([sum(part) / 2 for part in parts], names, fontsize=9)
    axis.set_xticks([_PROMPT[0], _KEPT[0], _GENERATED[0]], ["prompt\ntokens", "KV\ncache", "generated\ntokens"])
    axis.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    axis.spines[:].set_visible(False)
    axis.set(xlabel=f"prompts run {first} layers;\n{len(caches)} caches are kept", ylim=(0, total))
