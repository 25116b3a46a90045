"""How all figures look: style, one look a variant, bars with limits, curves, axes, title and legend; and writing a figure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import AutoLocator, LogLocator

from swiftkv.io import atomic_path

matplotlib.style.use(Path(__file__).with_name("figures.mplstyle"))
COLUMN, PAGE = 3.3, 6.75  # inches: a column and a page of a two-column paper

# Color and marker of variants; they are the same in every figure.
_LOOKS = {
    "baseline": ("#4D4D4D", "o"),
    "merge-all-layers": ("#E69F00", "D"),
    "swiftkv-25": ("#56B4E9", "v"),
    "swiftkv-50": ("#0072B2", "s"),
    "swiftkv-50-across2": ("#CC79A7", "P"),
    "swiftkv-50-across4": ("#009E73", "^"),
    "swiftkv-50-across8": ("#D55E00", "X"),
    "swiftkv-62.5": ("#332288", "X"),
    "swiftkv-50-tuned": ("#882255", "D"),
    "copied": ("#D55E00", "o"),
    "fitted": ("#009E73", "^"),
    "trained, paper's recipe": ("#CC79A7", "s"),
    "trained, tuned": ("#0072B2", "D"),
    "trained, tuned, for prompts alone": ("#882255", "P"),
}
# Of all other variants: colors of Tol's muted scheme, none of which a variant above has.
_OTHER_LOOKS = (("#117733", "X"), ("#999933", "o"), ("#AA4499", "s"))


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


def look(variant: str, kv_cache: str = "auto", second: bool = False) -> Look:
    """How a variant is drawn; one without a look of its own gets one from its name. Trainings are points, not a sweep."""
    other = _OTHER_LOOKS[sum(variant.encode()) % len(_OTHER_LOOKS)]
    return Look(*_LOOKS.get(variant, other), second or kv_cache == "fp8", not variant.startswith("trained, "))


def new_figure(
    width: float, height: float, title: str, handles: Sequence[Any] = (), notes: Sequence[str] = ()
) -> Figure:
    """A figure in the style of figures.mplstyle with its title above, and below it small print and a legend.

    Args:
        width, height: inches, without the small print.
        title: long lines are broken, but not in their last brackets.
        handles: entries of the legend, see `handle`; the legend has as many columns as fit.
        notes: lines of the small print.
    """
    share, space = width / PAGE, "\N{NO-BREAK SPACE}"
    small = [part for note in notes for part in textwrap.wrap(note, int(125 * share))]
    figure = Figure(figsize=(width, height + 0.1 * len(small)))
    kept = re.sub(r" (?=[^()]*\)$)", space, title)
    figure.suptitle(textwrap.fill(kept, int(112 * share)).replace(space, " "))
    longest = max((len(each.get_label()) for each in handles), default=0)
    columns = max(1, min(len(handles), int(126 * share) // (longest + 9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, title="\n".join(small) or None)
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
    """A value with its interval, a text at its foot and its limit; without a value `text` says why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    limit: float | None = None


def draw_bars(axis, groups: Sequence[str], series: Sequence[tuple[Look, Sequence[Bar]]]) -> None:
    """Grouped bars, one group a name in `groups`; dashes are limits, and an interval that leaves the axis ends in an arrow."""
    width = 0.84 / len(series)
    highest = max((top for _, bars in series for bar in bars for top in (bar.value, bar.limit) if top), default=1.0)
    top, narrow = 1.3 * highest, axis.get_gridspec().ncols * len(groups) * len(series) > 9
    text = {"ha": "center", "va": "bottom", "fontsize": 6, "rotation": 90 if narrow else 0}
    for number, (appearance, bars) in enumerate(series):
        for place, bar in enumerate(bars):
            x = place + (number - (len(series) - 1) / 2) * width
            if bar.value is None:
                axis.text(x, 0.02 * highest, bar.text, **(text | {"rotation": 90}))
                continue
            axis.bar(x, bar.value, 0.92 * width, **appearance.fill)
            if bar.low is not None and bar.high is not None:
                reach = [[bar.value - bar.low], [min(bar.high, top) - bar.value]]
                axis.errorbar(x, bar.value, reach, color="black", linewidth=0.8, capsize=1.5)
                if bar.high > top:
                    axis.plot(x, top, "^", color="black", clip_on=False)
            if bar.text:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.9}
                axis.text(x, 0.03 * highest, bar.text.replace("\n", " ") if narrow else bar.text, bbox=box, **text)
            if bar.limit is not None:
                axis.hlines(bar.limit, x - 0.46 * width, x + 0.46 * width, color="black")
    axis.set_xticks(range(len(groups)), groups)
    axis.set_xlim(-0.55, len(groups) - 0.45)
    axis.set_ylim(0, top)
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.tick_params(axis="x", length=0)


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
