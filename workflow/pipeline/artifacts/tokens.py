"""Quality over the tokens that variants were trained on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.ticker import EngFormatter, LogLocator

from pipeline.artifacts import Entry, Files, derived
from pipeline.artifacts.drawing import LOOKS, Drawing, Look, draw_curve, handle, label_ends, looks, new_figure
from pipeline.artifacts.entry import columns
from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Case
from pipeline.text import enumeration

_UNCHANGED = {"color": "0.3", "linestyle": ":"}  # was not trained, so it has no place on the axis


def make(entry: Entry, files: Files) -> Drawing:
    """Draw a panel a metric over training tokens: a curve a part of the entry, and lines across of unchanged models."""
    numbers, lines, metrics = Numbers(entry, files), derived.lines(entry), list(columns(entry))
    found, cases = derived.by_case(numbers.records), list(dict.fromkeys(line.case for line in lines))
    tasks = derived.averaged(entry, cases, found)
    numbers.add(row for case in cases for row in derived.average(case, tasks, found))
    if tasks:
        titles = [entry["tasks"][task]["title"] for task in tasks]
        numbers.notes.insert(0, f"{METRICS['average'].header}: mean over {enumeration(titles)}.")
    styles = part_looks(lines)
    unchanged = [case for case in cases if case.unchanged]
    handles = [handle("unchanged model", **_UNCHANGED)] if unchanged else []
    height = -(-len(metrics) // 2)
    numbers.notes.insert(0, "Bands: 95% intervals over questions or chats; each point is one training.")
    figure = new_figure(2.4 * height, entry, handles, numbers.notes)
    named = {}
    for place, metric in enumerate(metrics, 1):
        axis, ends = figure.add_subplot(height, 2, place), []
        for part, style in styles.items():
            curve = _curve(numbers, (line.case for line in lines if line.part == part), metric)
            draw_curve(axis, curve, style)
            if part and len(curve):
                name = "\n".join(textwrap.wrap(part, 18))
                ends.append((*curve.iloc[-1][["at", "value"]], name, style.color))
        for case in unchanged:
            if (value := numbers.value(case, metric)) is not None:
                axis.axhline(value, **_UNCHANGED)
        low, high = axis.get_ylim()
        header, unit = METRICS[metric].header, METRICS[metric].unit
        name = header if "%" in header or unit != "%" else f"{header} (%)"
        axis.set(xscale="log", xlabel="Training tokens", ylabel=name, ylim=(min(low, 0), high))
        axis.xaxis.set(major_locator=LogLocator(subs=(1, 3)), major_formatter=EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter("")
        if place % 2 == 0 or place == len(metrics):
            named[axis] = ends
    for axis, ends in named.items():
        label_ends(axis, ends)
    return Drawing(figure, numbers.data)


def part_looks(lines: Sequence[derived.Line]) -> dict[str | None, Look]:
    """Return the look of each part, which is that of its first changed variant with a look of its own, or else of its first."""
    chosen = {
        part: min(
            (line.case for line in lines if line.part == part),
            key=lambda case: (case.unchanged, case.variant not in LOOKS),
        ).variant
        for part in dict.fromkeys(line.part for line in lines)
    }
    styles = looks(chosen.values())
    return {part: styles[variant] for part, variant in chosen.items()}


def _curve(numbers: Numbers, cases: Iterable[Case], metric: str) -> pd.DataFrame:
    """Return the rows of a metric over training tokens, of the cases that have both."""
    rows = [
        row | {"at": tokens}
        for case in cases
        if (tokens := numbers.value(case, "training_tokens"))
        and (row := numbers.find(case, metric))
        and row["value"] is not None
    ]
    return pd.DataFrame(rows, columns=["at", "value", "low", "high"]).astype(float).sort_values("at")
