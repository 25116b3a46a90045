"""How serving figures are drawn: one look a variant in all of them, bars with limits, headings and legends."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from swiftkv.artifacts.figures import COLORS, MARKERS, PAGE
from swiftkv.artifacts.serving import Case, Serving, conditions

# Okabe and Ito's colours; a variant keeps its own in every serving figure.
_LOOKS = {
    "baseline": ("#4D4D4D", "o"),
    "merge-all-layers": ("#E69F00", "D"),
    "swiftkv-25": ("#56B4E9", "v"),
    "swiftkv-50": ("#0072B2", "s"),
    "swiftkv-50-across2": ("#CC79A7", "P"),
    "swiftkv-50-across4": ("#009E73", "^"),
    "swiftkv-50-across8": ("#D55E00", "X"),
}
LIMIT = "limit by FLOPs"


@dataclass(frozen=True)
class Look:
    """Colour and marker of a variant; `second` is its dashed or hatched form (FP8 KV cache, speculation)."""

    color: str
    marker: str
    second: bool = False

    @property
    def line(self) -> Any:
        return (0, (4, 1.5)) if self.second else "-"


@dataclass(frozen=True)
class Bar:
    """A value with its limit and the text above it; without a value `note` says why."""

    value: float | None
    limit: float | None = None
    text: str = ""
    note: str = ""


def look(case: Case, second: bool = False) -> Look:
    """How a case is drawn; a variant without a look of its own gets one from its name."""
    number = sum(case.variant.encode())
    color, marker = _LOOKS.get(case.variant, (COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]))
    return Look(color, marker, second or case.kv_cache == "fp8")


def draw_bars(axis, groups: Sequence[str], series: Sequence[tuple[Look, Sequence[Bar]]]) -> None:
    """Grouped bars, one group a name in `groups`; a black dash is a bar's limit, and a missing bar is written out."""
    width = 0.84 / len(series)
    highest = max((top for _, bars in series for bar in bars for top in (bar.value, bar.limit) if top), default=1.0)
    steep = 90 if len(groups) * len(series) > 10 else 0
    for number, (appearance, bars) in enumerate(series):
        for place, bar in enumerate(bars):
            x = place + (number - (len(series) - 1) / 2) * width
            if bar.value is None:
                axis.text(x, 0.02 * highest, bar.note, rotation=90, ha="center", va="bottom", fontsize=6,
                          color=appearance.color)  # fmt: skip
                continue
            axis.bar(x, bar.value, 0.92 * width, color=appearance.color, edgecolor="white", linewidth=0,
                     hatch="/////" if appearance.second else None)  # fmt: skip
            top, room = bar.value, highest * (0.25 if steep else 0.06 * (1 + bar.text.count("\n")))
            if bar.limit is not None:
                mark = axis.hlines(bar.limit, x - 0.46 * width, x + 0.46 * width, color="black", linewidth=1.3)
                mark.set_path_effects([patheffects.withStroke(linewidth=2.6, foreground="white")])
                if abs(bar.limit - bar.value) < room or bar.limit < bar.value:
                    top = max(top, bar.limit)  # the text does not fit between the two
            axis.text(x, top + 0.015 * highest, bar.text, rotation=steep, ha="center", va="bottom", fontsize=6)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylim(0, highest * (1.3 if steep else 1.18))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"))
    axis.tick_params(axis="x", length=0)


def wide_axis(axis, values: Sequence[float]) -> None:
    """Plain numbers on an axis for `values`: logarithmic where they span more than a factor of four, else from zero."""
    low, high = min(values, default=1), max(values, default=1)
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if low <= 0 or high < 4 * low:
        set_limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
        set_limits(0, None)
        return
    set_scale("log")
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 150 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def headings(figure: Figure, serving: Serving, what: str, panels: Mapping[str, Any] | None = None) -> None:
    """Write above the figure what it is and the conditions all models share, and above each panel the rest.

    Args:
        what: name of the figure in a few words.
        panels: model -> its axes; None for a figure of one model, which is then named in the figure's title.
    """
    groups = {model: serving.of(model) for model in serving.models}
    shared = {conditions(records, hardware=False) for records in groups.values() if records}
    machines = {conditions(records, engine=False) for records in groups.values() if records}
    above = [next(iter(found)) for found in (machines, shared) if len(found) == 1]
    title = what[0].upper() + what[1:] if panels else f"{serving.title(serving.models[0])}: {what}"
    lines = [*textwrap.wrap(title, 110), *textwrap.wrap(", ".join(above), 118)]
    figure.suptitle("\n".join(lines), fontsize=8)
    for model, axis in (panels or {}).items():
        below = [conditions(groups[model], engine=False)] if len(machines) > 1 else []
        below += [conditions(groups[model], hardware=False)] if len(shared) > 1 else []
        axis.set_title("\n".join([serving.title(model), *textwrap.wrap(", ".join(below), 80 // len(panels))]))


def handle(appearance: Look, label: str, bars: bool) -> Any:
    """A legend entry: a coloured box, or a line with its marker."""
    if bars:
        hatch = "/////" if appearance.second else None
        return Patch(facecolor=appearance.color, edgecolor="white", linewidth=0, hatch=hatch, label=label)
    return Line2D([], [], color=appearance.color, marker=appearance.marker, linestyle=appearance.line, label=label)


def limit_handle() -> Any:
    """The legend entry of the black dash."""
    return Line2D([], [], color="black", linewidth=1.3, label=LIMIT)


def legend(figure: Figure, handles: Sequence[Any], claims: Sequence[Mapping[str, Any]]) -> None:
    """A legend below the figure in as many columns as fit; above it the paper's words that may stand beside ours."""
    text = "; ".join(dict.fromkeys(claim["text"] for claim in claims))
    title = "\n".join(textwrap.wrap(f"published: {text}", 125)) if claims else None
    longest = max(len(entry.get_label()) for entry in handles)
    room = int(126 * figure.get_figwidth() / PAGE)
    columns = max(1, min(len(handles), room // (longest + 9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.2,
                  title=title, title_fontsize=6)  # fmt: skip
