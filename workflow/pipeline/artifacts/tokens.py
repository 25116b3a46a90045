"""Quality over the tokens that variants were trained on."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.ticker import EngFormatter, LogLocator

from pipeline.artifacts import Entry, Files, quality
from pipeline.artifacts.drawing import PAGE, Drawing, Look, draw_curve, handle, new_figure
from pipeline.artifacts.entry import columns
from pipeline.artifacts.labels import enumeration, heading
from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Case

_MARKERS = "osD^vP"
_UNCHANGED = {"color": "0.3", "linestyle": ":"}  # was not trained, so it has no place on the axis


def make(entry: Entry, files: Files) -> Drawing:
    """Draw a panel a metric over training tokens: a curve a part of the entry, and lines across of unchanged models."""
    numbers, lines, metrics = Numbers(entry, files), quality.lines(entry), list(columns(entry))
    found, cases = quality.by_case(numbers.records), list(dict.fromkeys(line.case for line in lines))
    tasks = quality.averaged(entry, cases, found)
    numbers.add(row for case in cases for row in quality.average(case, tasks, found))
    if tasks:
        titles = [entry["tasks"][task]["title"] for task in tasks]
        numbers.notes.insert(0, f"{METRICS['average'].header}: mean over {enumeration(titles)}.")
    parts = dict.fromkeys(line.part for line in lines)
    looks = {part: Look(f"C{place}", _MARKERS[place % len(_MARKERS)]) for place, part in enumerate(parts)}
    handles = [handle(part, **style.line) for part, style in looks.items() if part]
    unchanged = [case for case in cases if case.unchanged]
    if unchanged:
        handles.append(handle("unchanged", **_UNCHANGED))
    height = -(-len(metrics) // 2)
    figure = new_figure(PAGE, 1 + 2.2 * height, heading(entry), handles, numbers.notes)
    for place, metric in enumerate(metrics, 1):
        axis = figure.add_subplot(height, 2, place)
        for part, style in looks.items():
            draw_curve(axis, _curve(numbers, (line.case for line in lines if line.part == part), metric), style)
        for case in unchanged:
            if (value := numbers.value(case, metric)) is not None:
                axis.axhline(value, **_UNCHANGED)
        axis.set(xscale="log", xlabel="Training tokens", ylabel=METRICS[metric].header)
        axis.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter("")
    return Drawing(figure, numbers.data)


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
