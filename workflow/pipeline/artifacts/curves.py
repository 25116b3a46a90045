"""Draw quality over the tokens that variants were trained on, or over the layers that their prompts skip."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from matplotlib.ticker import EngFormatter, LogLocator

from pipeline.artifacts import Entry, Files, derived
from pipeline.artifacts.drawing import LOOKS, Drawing, Look, draw_curve, handle, label_ends, looks, new_figure
from pipeline.artifacts.entry import SKIPPED, TOKENS
from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.published import NOTHING, Numbers, published
from pipeline.artifacts.records import Case
from pipeline.text import enumeration

_UNCHANGED = {"color": "0.3", "linestyle": ":"}  # was not trained, so it has no place on the axis
_PUBLISHED = {"color": "0.45", "linestyle": "--", "markerfacecolor": "white"}


def make(entry: Entry, files: Files) -> Drawing:
    """Draw a panel a column: a curve a part of the entry, and lines across of unchanged models.

    A panel of differences has each variant's to its unchanged model, and those of `published_models`.
    """
    numbers, lines, over = Numbers(entry, files), derived.lines(entry), entry.get("over", TOKENS)
    found, cases = derived.by_case(numbers.records), list(dict.fromkeys(line.case for line in lines))
    tasks, unchanged = derived.averaged(entry, cases, found), {case.model: case for case in cases if case.unchanged}
    numbers.published = published(entry | {"models": entry["published_models"]}, files.get("published", ()), ())
    drawn = [(metric, panel.get("rows") == "differences") for panel in entry["panels"] for metric in panel["columns"]]
    for case in cases:
        numbers.add(derived.average(case, tasks, found))
        if over == SKIPPED:
            numbers.add(derived.reductions(entry, case, None))
        if any(apart for _, apart in drawn) and not case.unchanged and case.model in unchanged:
            numbers.add(derived.differences(entry, case, unchanged[case.model], tasks, found))
    if tasks:
        titles = [entry["tasks"][task]["title"] for task in tasks]
        numbers.notes.insert(0, f"{METRICS['average'].header}: mean over {enumeration(titles)}.")
    numbers.notes.insert(0, "Bands: 95% intervals over questions or chats; each point is one training.")
    styles, others = part_looks(lines), {}
    handles = [handle("unchanged model", **_UNCHANGED)] if unchanged else []
    for model, marker in zip(entry["published_models"], itertools.cycle("^s"), strict=False):
        others[model["published"]] = style = {**_PUBLISHED, "marker": marker}
        handles.append(handle(f"{model['title']}, published", **style))
    height = -(-len(drawn) // 2)
    figure = new_figure(2.4 * height, entry, handles, numbers.notes)
    named = {}
    for place, (metric, apart) in enumerate(drawn, 1):
        axis, ends = figure.add_subplot(height, 2, place), []
        for part, style in styles.items():
            shown = [line.case for line in lines if line.part == part]
            curve = _curve(numbers, shown, metric, over, unchanged if apart else {})
            draw_curve(axis, curve, style)
            if part and len(curve):
                name = "\n".join(textwrap.wrap(part, 18))
                ends.append((*curve.iloc[-1][["at", "value"]], name, style.color))
        for case in unchanged.values():
            if (value := 0 if apart else numbers.value(case, metric)) is not None:
                axis.axhline(value, **_UNCHANGED)
        for model, style in others.items() if apart else ():
            axis.plot("at", "value", data=_published_differences(numbers.published, model, metric), **style)
        _name_axes(axis, metric, over, apart)
        if place % 2 == 0 or place == len(drawn):
            named[axis] = ends
    for axis, ends in named.items():
        label_ends(axis, ends)
    return Drawing(figure, numbers.data)


def _name_axes(axis, metric: str, over: str, apart: bool) -> None:
    """Name the axes and set their limits and ticks."""
    header, unit = METRICS[metric].header, METRICS[metric].unit
    if apart:
        axis.set(ylabel=f"{header}, difference to the\nunchanged model (points)")
    else:
        low, high = axis.get_ylim()
        axis.set(ylabel=header if "%" in header or unit != "%" else f"{header} (%)", ylim=(min(low, 0), high))
    if over == SKIPPED:
        axis.set(xlabel="Layers that prompts skip (%)")
        return
    axis.set(xscale="log", xlabel="Training tokens")
    axis.xaxis.set(major_locator=LogLocator(subs=(1, 3)), major_formatter=EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter("")


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


def _curve(
    numbers: Numbers, cases: Iterable[Case], metric: str, over: str, unchanged: Mapping[str, Case]
) -> pd.DataFrame:
    """Return the rows of a metric over another one, of the cases that have both, as differences to `unchanged` if given."""
    rows = [
        row | {"at": at}
        for case in cases
        if (at := numbers.value(case, over))
        and (row := numbers.find(case, metric, against=unchanged.get(case.model, NOTHING)))
        and row["value"] is not None
    ]
    return pd.DataFrame(rows, columns=["at", "value", "low", "high"]).astype(float).sort_values("at")


def _published_differences(rows: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """Return a model's published differences to the unchanged model over the layers skipped, without shared caches."""
    values = rows[rows["model"] == model].pivot(index="variant", columns="metric", values="value")
    values = values[values["kv_cache_reduction_percent"] == 0].sort_values(SKIPPED)
    return pd.DataFrame({"at": values[SKIPPED], "value": values[metric] - values.loc["baseline", metric]})
