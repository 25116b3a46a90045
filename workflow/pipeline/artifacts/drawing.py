"""How all figures look: style, one look a variant, bars, curves, axes, titles and legends; and writing a figure."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import AutoLocator, LogLocator

from pipeline.artifacts import Entry
from pipeline.artifacts.labels import source, title
from swiftkv.io import atomic_path

matplotlib.style.use(Path(__file__).with_name("figures.mplstyle"))
PAGE = 6.75  # inches: a page of a two-column paper

# Color and marker of variants; they are the same in every figure. The tuned recipe is red, the paper's is blue; both are
# darker where prompts skip more.
LOOKS = {
    "baseline": ("#4D4D4D", "o"),
    "merge-all-layers": ("#E69F00", "D"),
    "swiftkv-25": ("#44AA99", "v"),
    "swiftkv-33": ("#56B4E9", "v"),
    "swiftkv-50": ("#0072B2", "s"),
    "swiftkv-62.5": ("#332288", "p"),
    "swiftkv-50-across2": ("#CC79A7", "P"),
    "swiftkv-50-across4": ("#009E73", "^"),
    "swiftkv-50-across8": ("#D55E00", "X"),
    "swiftkv-33-tuned": ("#CC6677", "d"),
    "swiftkv-50-tuned": ("#882255", "D"),
    "swiftkv-50-own": ("#AA4499", "h"),
    "shipped": ("#228833", "*"),
    "l18-100k": ("#56B4E9", "*"),
    "l18-tuned-100k": ("#CC6677", "*"),
    "l14-1170k": ("#0072B2", "P"),
    "l14-tuned-1170k": ("#882255", "P"),
    "copied": ("#999933", "o"),
    "fitted": ("#117733", "^"),
    "trained, paper's recipe": ("#0072B2", "s"),
    "trained, our recipe": ("#882255", "D"),
    "trained, tuned-quarter": ("#CC6677", "d"),
    "trained, our recipe, for prompts alone": ("#AA4499", "h"),
}
# Of all other variants of a figure, in their order there.
_OTHER_COLORS, _OTHER_MARKERS = ("#661100", "#6699CC", "#DDCC77", "#EE8866", "#88CCEE"), "<>8dXo"


class Drawing(NamedTuple):
    """A figure, and `values`, the rows of the frame that it shows (the CSV)."""

    figure: Figure
    values: pd.DataFrame


class Look(NamedTuple):
    """How a variant is drawn: `second` is its dashed, hatched form (FP8 KV cache, speculation); points may be `joined`."""

    color: str
    marker: str
    second: bool = False
    joined: bool = True

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of its curves."""
        dashes = (0, (4, 1.5)) if self.second else "-"
        return {"color": self.color, "marker": self.marker, "linestyle": dashes if self.joined else ""}

    @property
    def fill(self) -> dict[str, Any]:
        """Keyword arguments of its bars and boxes."""
        return {"facecolor": self.color, "edgecolor": "white", "linewidth": 0, "hatch": "////" if self.second else None}


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return how each variant of a figure is drawn: those without a look of their own get different ones by their order."""
    others = itertools.count()
    return {
        name: Look(*(LOOKS.get(name) or _other(next(others))), joined=not name.startswith("trained, "))
        for name in dict.fromkeys(names)
    }


def _other(place: int) -> tuple[str, str]:
    return _OTHER_COLORS[place % len(_OTHER_COLORS)], _OTHER_MARKERS[place % len(_OTHER_MARKERS)]


def new_figure(height: float, entry: Entry, handles: Sequence[Any] = (), notes: Sequence[str] = ()) -> Figure:
    """Return a figure of a page's width with the entry's title and a legend above, and its source and notes below.

    Args:
        height: inches, without title, legend and notes.
        entry: its title, models and published item are printed.
        handles: entries of the legend, see `handle`; the legend has as many columns as fit.
        notes: sentences below, in small print.
    """
    small = [part for note in (source(entry, notes), *notes) for part in textwrap.wrap(note, 110)]
    above = textwrap.wrap(title(entry), 72)
    longest = max((len(each.get_label()) for each in handles), default=0)
    columns = max(1, min(len(handles), 92 // (longest + 8)))
    rows = -(-len(handles) // columns)
    figure = Figure(figsize=(PAGE, height + 0.2 * (len(above) + rows) + 0.14 * len(small)))
    legend = figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, title="\n".join(above), alignment="left"
    )
    legend.get_title().set_weight("bold")
    figure.supxlabel("\n".join(small), x=0.01, ha="left", color="0.4")
    return figure


def handle(label: str, *, box: bool = False, **style: Any) -> Any:
    """A legend entry: a line or marker in a style of `Line2D`, or a filled box in a style of `Patch`."""
    return Patch(label=label, **style) if box else Line2D([], [], label=label, **style)


def write_figure(drawing: Drawing, outputs: Mapping[str, Path]) -> None:
    """Write the picture as "pdf", "svg" and "png" (300 dpi); equal input gives equal bytes."""
    dated = {"pdf": ("CreationDate", "Creator", "Producer"), "svg": ("Date", "Creator"), "png": ("Software",)}
    for form, keys in dated.items():
        with atomic_path(outputs[form]) as scratch:
            drawing.figure.savefig(scratch, format=form, metadata=dict.fromkeys(keys))


class Bar(NamedTuple):
    """A value, its interval, a text above it and `more` where there is room, its limit, and the end of an outline above it.

    Without a value `text` says why.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    more: str = ""
    limit: float | None = None
    upto: float | None = None


def draw_bars(axis, groups: Sequence[str], series: Sequence[tuple[Look, Sequence[Bar]]]) -> None:
    """Grouped bars, one group a name in `groups`; dashes are limits, and an interval that leaves the axis ends in an arrow."""
    width = 0.9 / len(series)
    every = [bar for _, bars in series for bar in bars]
    highest = max((end for bar in every for end in (bar.value, bar.limit, bar.upto) if end), default=1.0)
    narrow = axis.get_gridspec().ncols * len(groups) * len(series) > 9
    top = (1.35 if any(bar.more for bar in every) else 1.3) * highest
    text = {"ha": "center", "va": "bottom", "fontsize": 8.5, "rotation": 90 if narrow else 0}
    for number, (appearance, bars) in enumerate(series):
        for place, bar in enumerate(bars):
            x = place + (number - (len(series) - 1) / 2) * width
            if bar.value is None:
                axis.text(x, 0.02 * highest, bar.text, **(text | {"rotation": 90}))
                continue
            axis.bar(x, bar.value, 0.92 * width, **appearance.fill)
            if bar.upto is not None:
                outline = {"fill": False, "edgecolor": appearance.color, "linestyle": ":"}
                axis.bar(x, bar.upto - bar.value, 0.92 * width, bar.value, **outline)
            if bar.low is not None and bar.high is not None:
                reach = [[bar.value - bar.low], [min(bar.high, top) - bar.value]]
                axis.errorbar(x, bar.value, reach, color="black", linewidth=0.8, capsize=2)
                if bar.high > top:
                    axis.plot(x, top, "^", color="black", clip_on=False)
            if bar.limit is not None:
                axis.hlines(bar.limit, x - 0.46 * width, x + 0.46 * width, color="black")
            over = max(end for end in (bar.value, bar.limit, bar.upto, bar.high) if end is not None)
            axis.text(x, min(over, highest) + 0.02 * highest, bar.text + bar.more * (not narrow), **text)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylim(0, top)
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.tick_params(axis="x", length=0)


def label_ends(axis, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names of curves right of the axes, at the height of their last points but apart; limits must be final.

    Args:
        ends: x and y of the last point, name and color of each curve; lines of a name are divided by newlines.
    """
    axis.figure.draw_without_rendering()  # lays out the axes
    to_axis, line = axis.transScale + axis.transLimits, 15 / (72 * axis.bbox.height / axis.figure.dpi)
    known = sorted((float(to_axis.transform((x, y))[1]), x, y, name, color) for x, y, name, color in ends)
    sizes = [line * (name.count("\n") + 1.1) for *_, name, _ in known]
    places: list[float] = []
    for (wanted, *_), size in zip(known, sizes, strict=True):
        places.append(max(wanted, places[-1] + (size + sizes[len(places) - 1]) / 2 if places else 0))
    highest = 1.05
    for place in reversed(range(len(places))):
        places[place] = min(places[place], highest - sizes[place] / 2)
        highest = places[place] - sizes[place] / 2
    for (_, x, y, name, color), place in zip(known, places, strict=True):
        link = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "linestyle": ":", "shrinkA": 0, "relpos": (0, 0.5)}
        axis.annotate(
            name, (x, y), (1.04, place), textcoords="axes fraction", color=color, va="center", arrowprops=link,
            annotation_clip=False,
        )  # fmt: skip


def draw_curve(axis, rows: pd.DataFrame, appearance: Look, filled: pd.Series | None = None) -> None:
    """A curve of rows over `at` with its intervals, as a band, or as bars of single points; markers not filled are open."""
    ends = (rows["at"], rows["low"], rows["high"])
    if appearance.joined and len(rows) > 1:
        axis.fill_between(*ends, color=appearance.color, alpha=0.18, linewidth=0)
    else:
        axis.vlines(*ends, color=appearance.color, linewidth=0.8)
    axis.plot(rows["at"], rows["value"], **appearance.line)
    if filled is not None:
        axis.plot(
            "at", "value", data=rows[~filled], **(appearance.line | {"linestyle": "", "markerfacecolor": "white"})
        )


def wide_axis(axis, values: pd.Series, times: bool = False) -> None:
    """Plain numbers on an axis for `values`: logarithmic where they span more than a factor of four, or are `times`.

    Else it begins at zero, so that a small gain looks small.
    """
    low, high = values.min(), values.max()
    wide = 0 < low <= high / 4
    if wide or times:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        subs = (1, 2, 3, 5) if high < 20 * low else (1, 2, 5) if high < 150 * low else (1,)
        axis.set_major_locator(LogLocator(base=10, subs=subs) if wide else AutoLocator())
        axis.minorticks_off()
    elif low >= 0:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, None)})
    axis.set_major_formatter("{x:,g}")
