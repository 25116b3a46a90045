"""What SwiftKV changes in a model, drawn from the spec alone: Figure 1 of the paper and of the blog."""

from __future__ import annotations

import pandas as pd

from pipeline.artifacts.drawing import COLUMN, PAGE, Drawing, box_entry, headline, legend, line_entry, new_figure
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.serving import described
from pipeline.artifacts.text import variant_label
from swiftkv.spec import SwiftKVSpec

_COMPUTED = {"facecolor": "#0072B2", "edgecolor": "white"}
_SKIPPED = {"facecolor": "white", "edgecolor": "0.55", "hatch": "//////"}
_CACHE = {"facecolor": "#E69F00", "edgecolor": "white"}
_SOURCE = "#000000"
# Left edge and width of each column of boxes, in a panel that is 1 wide, and where the shared input runs upward.
_PROMPT, _KEPT, _GENERATED, _RISER = (0.14, 0.2), (0.5, 0.14), (0.8, 0.2), 0.42


def _extra(config: Config, entry: Entry) -> dict[str, dict[str, int]]:
    return {"num_hidden_layers": {m["name"]: config.models[m["name"]].num_hidden_layers for m in entry["models"]}}


def make(entry: Entry, files: Files) -> Drawing:
    """One panel a variant: layers that a prompt token computes, the cache of each group, layers of a generated token."""
    model = entry["models"][0]
    specs = {variant: _spec(entry, variant) for variant, _ in entry["cases"]}
    rows = -(-len(specs) // 3)
    columns = -(-len(specs) // rows)
    size = (COLUMN, 4.3) if len(specs) == 1 else (PAGE, 1.0 + 3.2 * rows)
    figure = new_figure(*size)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(specs) :]:
        axis.set_visible(False)
    for axis, (variant, spec) in zip(axes.flat, specs.items(), strict=False):
        _panel(axis, spec)
        axis.set_title(variant_label(described(entry["specs"][model["name"]][variant])))
    headline(figure, f"{model['title']}: {entry['title']} ({entry['label']})")
    legend(figure, _handles(list(specs.values())), notes=entry.get("notes", []))
    return Drawing(figure, frame(entry))


def frame(entry: Entry) -> pd.DataFrame:
    """One row a variant and layer, counted from 0.

    `computed_for_prompt` says whether prompt tokens go through the layer; the last of them always does.
    `kv_from_layer` is the layer whose input, the output of the one before, its keys and values are projected from.
    `cache_owner` is the layer whose cache it reads: the first of its AcrossKV group, or itself.
    """
    model = entry["models"][0]
    rows = []
    for variant, _ in entry["cases"]:
        spec = _spec(entry, variant)
        first = spec.num_key_value_layers
        rows += [
            {
                "model": model["name"],
                "title": model["title"],
                "variant": variant,
                "layer": layer,
                "computed_for_prompt": layer < first,
                "kv_from_layer": min(layer, first),
                "cache_owner": spec.owner(layer),
            }
            for layer in range(spec.num_hidden_layers)
        ]
    return pd.DataFrame(rows)


def _spec(entry: Entry, variant: str) -> SwiftKVSpec:
    """The variant's wiring; that of an unchanged model is l = L."""
    model = entry["models"][0]["name"]
    fields, total = entry["specs"][model][variant], entry["num_hidden_layers"][model]
    return SwiftKVSpec(**fields) if fields else SwiftKVSpec(total, total)


def _panel(axis, spec: SwiftKVSpec) -> None:
    total, first = spec.num_hidden_layers, spec.num_key_value_layers
    thin, head, gap = (0.6, 2.0, 0.12) if total <= 40 else (0.35, 1.0, 0.12)
    from matplotlib.patches import Rectangle

    axis.set_axis_off()
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.06 * total, 1.11 * total)

    def box(column: tuple[float, float], low: float, high: float, style: dict) -> None:
        left, width = column
        axis.add_patch(Rectangle((left, low + gap / 2), width, high - low - gap, linewidth=thin, **style))

    def arrows(start: float, end: float, heights: list[float], width: float, color: str = "0.35") -> None:
        axis.hlines(heights, start, end, color=color, linewidth=width, zorder=0.5)
        tips = [end - 0.012] * len(heights)
        axis.plot(tips, heights, linestyle="", marker=">", markersize=head, markeredgewidth=0, color=color)

    for layer in range(total):
        box(_PROMPT, layer, layer + 1, _COMPUTED if layer < first else _SKIPPED)
        box(_GENERATED, layer, layer + 1, _COMPUTED)
    for group in [*(range(layer, layer + 1) for layer in range(first)), *spec.groups]:
        box(_KEPT, group.start, group.stop, _CACHE)
    arrows(sum(_PROMPT), _KEPT[0], [layer + 0.5 for layer in range(first)], thin)
    arrows(sum(_KEPT), _GENERATED[0], [layer + 0.5 for layer in range(total)], thin)
    if spec.groups:
        middles = [(group.start + group.stop) / 2 for group in spec.groups]
        arrows(_RISER, _KEPT[0], middles, 2 * thin, _SOURCE)
        axis.plot((sum(_PROMPT), _RISER, _RISER), (first, first, middles[-1]), color=_SOURCE, linewidth=4 * thin)
    _ranges(axis, [(0, first), (first, total)])
    for (left, width), words in ((_PROMPT, "prompt\ntokens"), (_KEPT, "KV\ncache"), (_GENERATED, "generated\ntokens")):
        axis.text(left + width / 2, 1.01 * total, words, ha="center", va="bottom", fontsize=7)
    caches = first + len(spec.groups)
    below = f"prompt: {first} of {total} layers; {caches} of {total} caches"
    axis.text(0.5, -0.02 * total, below, ha="center", va="top", fontsize=7)


def _ranges(axis, ranges: list[tuple[int, int]]) -> None:
    """Brackets with the layers' numbers, left of the boxes."""
    for low, high in ranges:
        if high == low:
            continue
        label = str(low) if high == low + 1 else f"{low} – {high - 1}"
        axis.plot([0.1, 0.08, 0.08, 0.1], [low + 0.1, low + 0.1, high - 0.1, high - 0.1], color="0.2", linewidth=0.7)
        axis.text(0.06, (low + high) / 2, label, rotation=90, ha="right", va="center", fontsize=7)


def _handles(specs: list[SwiftKVSpec]) -> list:
    found = [box_entry("computed", **_COMPUTED, linewidth=0)]
    if any(spec.groups for spec in specs):
        found.append(box_entry("skipped", **_SKIPPED, linewidth=0.5))
    found.append(box_entry("keys and values kept", **_CACHE, linewidth=0))
    if any(spec.groups for spec in specs):
        label = "projected from the input of the first skipped layer"
        found.append(line_entry(label, color=_SOURCE, linewidth=2))
    return found


KIND = ArtifactKind("figure", ("models", "variants"), (), make, exactly={"models": 1}, extra=_extra)
