"""How all figures look: style, one look a variant, bars with limits, axes and legends; and writing a figure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from swiftkv.io import atomic_path

if TYPE_CHECKING:  # every job plans, and so knows all kinds; few draw
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
LIMIT = "limit by FLOPs"
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
}
# Of all other variants: colors of Tol's muted scheme, none of which a variant above has.
_OTHER_COLORS = ("#117733", "#999933", "#AA4499")
_HATCHES = ("////", "....", "xxxx", "||||", "----", "oooo")


@dataclass(frozen=True)
class Drawing:
    """A figure, and the data it shows as one frame (the CSV)."""

    figure: Figure
    data: pd.DataFrame


@dataclass(frozen=True)
class Look:
    """How a variant is drawn.

    `second` is its dashed, doubly hatched form (FP8 KV cache, speculation).
    """

    color: str
    marker: str
    hatch: str
    second: bool = False

    @property
    def line(self) -> Any:
        """The dash pattern of its lines."""
        return (0, (4, 1.5)) if self.second else "-"

    @property
    def fill(self) -> dict[str, Any]:
        """Keyword arguments of its bars and boxes."""
        hatch = self.hatch + ("\\\\\\\\" if self.second else "")
        return {"facecolor": self.color, "edgecolor": "white", "linewidth": 0, "hatch": hatch or None}


_ABOVE, _GAP = "above a bar", 2  # what a text is, and its distance in points


@dataclass(frozen=True)
class Bar:
    """A value with its limit by FLOPs, its error and the text above it; without a value `note` says why.

    The error is a standard error, or how far the value may lie below and above.
    """

    value: float | None
    limit: float | None = None
    text: str = ""
    note: str = ""
    error: float | tuple[float, float] | None = None

    @property
    def reach(self) -> tuple[float, float]:
        """How far its error reaches below and above the value."""
        return self.error if isinstance(self.error, tuple) else (self.error or 0.0, self.error or 0.0)


def new_figure(width: float, height: float, notes: Sequence[str] = ()) -> Figure:
    """An empty figure of so many inches; whatever is drawn from here on has this module's style.

    It is higher by the lines of the `notes` that will stand below it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    return Figure(figsize=(width, height + _LINE * len(_wrapped(width, notes))), layout="constrained")


def write_figure(drawing: Drawing, outputs: Mapping[str, str | Path]) -> None:
    """Write the picture as "pdf" and "png" (300 dpi) and its data as "csv"; equal input gives equal bytes."""
    _make_room(drawing.figure)
    for form, dpi, dated in (("pdf", "figure", ("CreationDate", "Creator", "Producer")), ("png", 300, ("Software",))):
        with atomic_path(outputs[form]) as scratch:
            drawing.figure.savefig(scratch, format=form, dpi=dpi, metadata=dict.fromkeys(dated))
    with atomic_path(outputs["csv"]) as scratch:
        drawing.data.to_csv(scratch, index=False, lineterminator="\n")


def _make_room(figure: Figure) -> None:
    """Stand the texts above bars upright where they are wider than a bar, and end the axes above them."""
    figure.draw_without_rendering()  # only now every part has its size
    for axis in figure.axes:
        if not (above := [text for text in axis.texts if text.get_gid() == _ABOVE and text.get_text()]):
            continue
        frame, boxes = axis.get_window_extent(), [text.get_window_extent() for text in above]
        bar = frame.width * axis.patches[0].get_width() / (axis.get_xlim()[1] - axis.get_xlim()[0])
        steep = max(box.width for box in boxes) > 1.1 * bar
        for text, box in zip(above, boxes, strict=True):
            text.set_rotation(90 if steep else 0)
            room = (box.width if steep else box.height) + 3 * _GAP * figure.dpi / 72
            top = text.xy[1] * frame.height / max(frame.height - room, 0.2 * frame.height)
            axis.set_ylim(0, max(top, axis.get_ylim()[1]))


def look(variant: str, kv_cache: str = "auto", second: bool = False) -> Look:
    """How a variant is drawn; one without a look of its own gets one from its name."""
    number = sum(variant.encode())
    cycles = (_OTHER_COLORS, MARKERS, _HATCHES)
    other = tuple(cycle[number % len(cycle)] for cycle in cycles)
    return Look(*_LOOKS.get(variant, other), second or kv_cache == "fp8")


def line_style(number: int) -> dict[str, Any]:
    """Color, dashes and marker of the curve `number` where curves are not variants, as keyword arguments."""
    cycles = {"color": COLORS, "linestyle": DASHES, "marker": MARKERS}
    return {name: cycle[number % len(cycle)] for name, cycle in cycles.items()}


def draw_bars(axis, groups: Sequence[str], series: Sequence[tuple[Look, Sequence[Bar]]]) -> None:
    """Grouped bars, one group a name in `groups`; dashes are limits; texts stand above all of them."""
    from matplotlib import patheffects

    width = 0.84 / len(series)
    tops = ((bar.limit, bar.value and bar.value + bar.reach[1]) for _, bars in series for bar in bars)
    highest = max((top for several in tops for top in several if top), default=1.0)
    for number, (appearance, bars) in enumerate(series):
        for place, bar in enumerate(bars):
            x = place + (number - (len(series) - 1) / 2) * width
            if bar.value is None:
                axis.text(x, 0.02 * highest, bar.note, rotation=90, ha="center", va="bottom", fontsize=6)
                continue
            axis.bar(x, bar.value, 0.92 * width, **appearance.fill)
            top = bar.value + bar.reach[1]
            if bar.error is not None:
                axis.errorbar(x, bar.value, [[end] for end in bar.reach], color="black", linewidth=0.8, capsize=1.5)
            if bar.limit is not None:
                mark = axis.hlines(bar.limit, x - 0.46 * width, x + 0.46 * width, color="black", linewidth=1.3)
                mark.set_path_effects([patheffects.withStroke(linewidth=2.6, foreground="white")])
                top = max(top, bar.limit)
            offset = {"xytext": (0, _GAP), "textcoords": "offset points"}
            axis.annotate(bar.text, (x, top), ha="center", va="bottom", fontsize=6, gid=_ABOVE, **offset)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylim(0, 1.05 * highest)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    axis.tick_params(axis="x", length=0)


def wide_axis(axis, values: Iterable[float]) -> None:
    """Plain numbers on an axis for `values`: logarithmic where they span more than a factor of four, else from zero."""
    from matplotlib.ticker import LogLocator

    values = list(values)
    low, high = min(values, default=1), max(values, default=1)
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    if low <= 0 or high < 4 * low:
        set_limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
        set_limits(0, None)
        return
    set_scale("log")
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high < 150 * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.minorticks_off()


def headline(figure: Figure, *lines: str) -> None:
    """Write what a figure is above it; long lines are broken, but not in their last brackets, and empty ones left out."""
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


def handle(appearance: Look, label: str, bars: bool = False) -> Any:
    """A legend entry: a filled box, or a line with its marker."""
    if bars:
        return box_entry(label, **appearance.fill)
    return line_entry(label, color=appearance.color, marker=appearance.marker, linestyle=appearance.line)


def limit_handle() -> Any:
    """The legend entry of limits over bars."""
    return line_entry(LIMIT, color="black", linewidth=1.3)


def line_entry(label: str, **style: Any) -> Any:
    """A legend entry that is a line or a marker, in a style of `Line2D`."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def box_entry(label: str, **style: Any) -> Any:
    """A legend entry that is a filled box, in a style of `Patch`."""
    from matplotlib.patches import Patch

    return Patch(label=label, **style)


def legend(figure: Figure, handles: Sequence[Any], published: Sequence[str] = (), notes: Sequence[str] = ()) -> None:
    """A legend below the figure in as many columns as fit; above it published words, and notes on what is missing."""
    room = figure.get_figwidth() / PAGE
    lines = [f"published: {'; '.join(dict.fromkeys(published))}"] if published else []
    above = "\n".join(_wrapped(figure.get_figwidth(), [*lines, *notes]))
    longest = max(len(entry.get_label()) for entry in handles)
    columns = max(1, min(len(handles), int(126 * room) // (longest + 9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.2,
                  title=above or None, title_fontsize=_PRINT)  # fmt: skip
