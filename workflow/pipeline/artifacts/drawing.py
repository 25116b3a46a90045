"""How all figures look: style, one look a variant, bars with limits, curves, axes and legends; and writing a figure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from swiftkv.io import atomic_path

if TYPE_CHECKING:  # matplotlib is slow to import, and only what draws needs it
    from matplotlib.figure import Figure

# Okabe and Ito's colors without yellow, which is too light for lines; dashes and markers tell them apart in gray.
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
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}
COLUMN, PAGE = 3.3, 6.75  # inches: a column and a page of a two-column paper
_PRINT, _LINE = 6, 0.1  # points of the small print, and inches of a line of it
LIMIT_CURVE = (0, (6, 2))  # the line style of a curve's limit; over a bar it is a dash

# Color, marker and hatch of variants; they are the same in every figure.
_LOOKS = {
    "baseline": ("#4D4D4D", "o", ""),
    "merge-all-layers": ("#E69F00", "D", "xxxx"),
    "swiftkv-25": ("#56B4E9", "v", "...."),
    "swiftkv-50": ("#0072B2", "s", "////"),
    "swiftkv-50-across2": ("#CC79A7", "P", "++++"),
    "swiftkv-50-across4": ("#009E73", "^", "...."),
    "swiftkv-50-across8": ("#D55E00", "X", "||||"),
    "swiftkv-62.5": ("#332288", "X", "----"),
    "swiftkv-50-tuned": ("#882255", "D", "xxxx"),
    "copied": ("#D55E00", "o", ""),
    "fitted": ("#009E73", "^", ""),
}
# Of all other variants: colors of Tol's muted scheme, none of which a variant above has.
_OTHER_COLORS = ("#117733", "#999933", "#AA4499")
_HATCHES = ("////", "....", "xxxx", "||||", "----", "oooo")


@dataclass(frozen=True)
class Drawing:
    """A figure, and the rows of the frame that it shows (the CSV)."""

    figure: Figure
    data: pd.DataFrame


class Look(NamedTuple):
    """How a variant is drawn; `second` is its dashed, doubly hatched form (FP8 KV cache, speculation)."""

    color: str
    marker: str
    hatch: str
    second: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of its curves."""
        return {"color": self.color, "marker": self.marker, "linestyle": (0, (4, 1.5)) if self.second else "-"}

    @property
    def fill(self) -> dict[str, Any]:
        """Keyword arguments of its bars and boxes."""
        hatch = self.hatch + ("\\\\\\\\" if self.second else "")
        return {"facecolor": self.color, "edgecolor": "white", "linewidth": 0, "hatch": hatch or None}


def look(variant: str, kv_cache: str = "auto", second: bool = False) -> Look:
    """How a variant is drawn; one without a look of its own gets one from its name."""
    number = sum(variant.encode())
    other = tuple(cycle[number % len(cycle)] for cycle in (_OTHER_COLORS, MARKERS, _HATCHES))
    return Look(*_LOOKS.get(variant, other), second or kv_cache == "fp8")


def line_style(number: int) -> dict[str, Any]:
    """Color, dashes and marker of the curve `number` where curves are not variants, as keyword arguments."""
    cycles = {"color": COLORS, "linestyle": DASHES, "marker": MARKERS}
    return {name: cycle[number % len(cycle)] for name, cycle in cycles.items()}


def new_figure(width: float, height: float, notes: Sequence[str] = ()) -> Figure:
    """An empty figure of so many inches, higher by the lines of the notes below it; it sets this module's style."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    return Figure(figsize=(width, height + _LINE * len(_wrapped(width, notes))), layout="constrained")


def write_figure(drawing: Drawing, outputs: Mapping[str, str | Path]) -> None:
    """Write the picture as "pdf" and "png" (300 dpi) and its data as "csv"; equal input gives equal bytes."""
    for form, dpi, dated in (("pdf", "figure", ("CreationDate", "Creator", "Producer")), ("png", 300, ("Software",))):
        with atomic_path(outputs[form]) as scratch:
            drawing.figure.savefig(scratch, format=form, dpi=dpi, metadata=dict.fromkeys(dated))
    with atomic_path(outputs["csv"]) as scratch:
        drawing.data.to_csv(scratch, index=False, lineterminator="\n")


class Bar(NamedTuple):
    """A value with its interval, a text inside, its limit and the text above that; without a value `note` says why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    limit: float | None = None
    limit_text: str = ""
    note: str = ""


def draw_bars(
    axis, groups: Sequence[str], series: Sequence[tuple[Look, Sequence[Bar]]], *, steep: bool = False
) -> None:
    """Grouped bars, one group a name in `groups`; dashes are limits, each with its number above; `steep` texts stand upright."""
    from matplotlib import patheffects

    width = 0.84 / len(series)
    tops = [top for _, bars in series for bar in bars for top in (bar.value, bar.high, bar.limit) if top]
    highest = max(tops, default=1.0)
    rotation = 90 if steep else 0
    for number, (appearance, bars) in enumerate(series):
        for place, bar in enumerate(bars):
            x = place + (number - (len(series) - 1) / 2) * width
            if bar.value is None:
                axis.text(x, 0.02 * highest, bar.note, rotation=90, ha="center", va="bottom", fontsize=6)
                continue
            axis.bar(x, bar.value, 0.92 * width, **appearance.fill)
            if bar.low is not None and bar.high is not None and bar.high > bar.low:
                reach = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
                axis.errorbar(x, bar.value, reach, color="black", linewidth=0.8, capsize=1.5)
            if bar.text:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.9}
                axis.text(
                    x, 0.45 * bar.value, bar.text, ha="center", va="center", fontsize=6, bbox=box, rotation=rotation
                )
            if bar.limit is not None:
                mark = axis.hlines(bar.limit, x - 0.46 * width, x + 0.46 * width, color="black", linewidth=1.3)
                mark.set_path_effects([patheffects.withStroke(linewidth=2.6, foreground="white")])
                axis.annotate(bar.limit_text, (x, bar.limit), xytext=(0, 2), textcoords="offset points",
                              ha="center", va="bottom", fontsize=5.5, color="0.25", rotation=rotation)  # fmt: skip
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylim(0, 1.2 * highest)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    axis.tick_params(axis="x", length=0)


def draw_curve(axis, rows: pd.DataFrame, appearance: Look, filled: Sequence[bool] = ()) -> None:
    """A curve of rows over `at`, with a band where they have intervals; markers that are not filled are open."""
    known = rows.dropna(subset="value").sort_values("at")
    band = known.dropna(subset=["low", "high"])
    if len(band) and (band["high"] > band["low"]).any():
        axis.fill_between(band["at"], band["low"], band["high"], color=appearance.color, alpha=0.18, linewidth=0)
    axis.plot(known["at"], known["value"], **(appearance.line | {"marker": ""}))
    for place, (at, value) in enumerate(zip(known["at"], known["value"], strict=True)):
        face = appearance.color if not len(filled) or filled[place] else "white"
        axis.plot(at, value, color=appearance.color, marker=appearance.marker, markerfacecolor=face)


def wide_axis(axis, values: Iterable[float]) -> None:
    """Plain numbers on an axis for `values`: logarithmic where they span more than a factor of four, else from zero."""
    from matplotlib.ticker import LogLocator

    known = [value for value in values if pd.notna(value)]
    low, high = min(known, default=1), max(known, default=1)
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    if low <= 0 or high < 4 * low:
        (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(0, None)
        return
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 150 * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.minorticks_off()


def headline(figure: Figure, *lines: str) -> None:
    """Write the title above a figure; long lines are broken, but not in their last brackets, and empty ones left out."""
    room, space = int(112 * figure.get_figwidth() / PAGE), "\N{NO-BREAK SPACE}"
    kept = [re.sub(r" (?=[^()]*\)$)", space, line) for line in lines]
    broken = [part for line in kept for part in textwrap.wrap(line, room)]
    figure.suptitle("\n".join(broken).replace(space, " "), fontsize=8)


def remarks(figure: Figure, notes: Sequence[str]) -> None:
    """Small print below a figure that has no legend there."""
    if notes:
        figure.supxlabel("\n".join(_wrapped(figure.get_figwidth(), notes)), fontsize=_PRINT, x=0.02, ha="left")


def _wrapped(width: float, notes: Sequence[str]) -> list[str]:
    """Lines of small print that fill so many inches."""
    return [part for line in notes for part in textwrap.wrap(line, int(125 * width / PAGE))]


def handle(label: str, *, box: bool = False, **style: Any) -> Any:
    """A legend entry: a line or marker in a style of `Line2D`, or a filled box in a style of `Patch`."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return Patch(label=label, **style) if box else Line2D([], [], label=label, **style)


def legend(figure: Figure, handles: Sequence[Any], notes: Sequence[str] = ()) -> None:
    """A legend below the figure in as many columns as fit, and small print above it."""
    above = "\n".join(_wrapped(figure.get_figwidth(), notes))
    longest = max(len(entry.get_label()) for entry in handles)
    columns = max(1, min(len(handles), int(126 * figure.get_figwidth() / PAGE) // (longest + 9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.2,
                  title=above or None, title_fontsize=_PRINT)  # fmt: skip
