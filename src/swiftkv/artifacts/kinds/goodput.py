"""Requests a second within stated limits, by workload: one panel a point, which is one way to run the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.drawing import PAGE, Bar, Drawing, draw_bars, handle, headline, legend, look, new_figure
from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.serving import BASELINE, Cell, Serving, conditions, rate_cells, ratio, read_serving, serving_kind
from swiftkv.statistics import mean_and_stderr, share_stderr

_LIMITS = {
    "ttft": "its first token within {:,g} ms",
    "tpot": "{:,g} ms a further token",
    "e2el": "its last within {:,g} ms",
}


def make(entry: Entry, files: Files) -> Drawing:
    """The highest goodput of one model, grouped by workload; above a bar its ratio to the baseline's."""
    serving = read_serving(entry, files, "goodput", apart=True)
    (model,), points = serving.models, serving.points
    # A panel has as much room as it has groups, and never so little that its title does not fit.
    widths = [max(1.5, len(point["workloads"])) for point in entry["points"].values()]
    figure = new_figure(PAGE, 3.6)
    axes = figure.subplots(1, len(points), squeeze=False, width_ratios=widths)[0]
    for axis, point in zip(axes, points, strict=True):
        workloads = entry["points"][point]["workloads"]
        series = [
            (look(*cell.case), [_bar(cell, workload) for workload in workloads]) for cell in serving.cells(model, point)
        ]
        draw_bars(axis, [workload["title"] for workload in workloads.values()], series)
        axis.set_title(_mode(serving, point), fontsize=7)
    axes[0].set_ylabel("Good requests a second")
    title = f"{serving.title(model)}: {entry['title']} ({entry['label']})"
    headline(figure, title, _machine(serving.of(model)))
    handles = [handle(look(*case), serving.label(case), bars=True) for case in serving.cases]
    legend(figure, handles, notes=[*_notes(serving), *serving.notes])
    return Drawing(figure, frame(serving))


def frame(serving: Serving) -> pd.DataFrame:
    """What the bars show: one row a point, workload, case and measured rate; what is of all rates repeats in each.

    `highest_goodput` is the most good requests a second at any rate; a lower bound where `bounded` is false. Standard
    errors are those of counting good requests, as if each were good or not by itself, or of turns (`_ratio`). `ratio` is to
    the baseline's highest goodput; there is none where that is a lower bound or zero. Times are in milliseconds.
    """
    return pd.DataFrame(
        [
            line
            for point, settings in serving.entry["points"].items()
            for workload in settings["workloads"]
            for cell in serving.cells(point=point)
            for line in _lines(cell, workload)
        ]
    )


def _lines(cell: Cell, workload: str) -> list[dict[str, Any]]:
    measured, engine = _measured(cell.record, workload), cell.record.engine
    source, limits = measured.get("source", {}), cell.settings["workloads"][workload]["goodput"]
    head = {
        **cell.place,
        "mode": engine.get("compilation"),
        "prefix_caching": engine.get("prefix_caching"),
        "workload": workload,
        "source": source.get("id"),
        "resolved": source.get("resolved"),
        **cell.variant,
        **cell.state(measured),
        "conditions": cell.record.conditions(),
        **{f"{name}_limit_ms": limits.get(name) for name in _LIMITS},
        **{name: source.get(name) for name in ("mean_input_tokens", "mean_output_tokens", "repeated")},
    }
    gain, error = _ratio(cell, workload)
    tail = {
        "highest_goodput": measured.get("goodput"),
        "highest_goodput_stderr": _error(measured),
        "at_request_rate": measured.get("request_rate"),
        "bounded": measured.get("bounded"),
        "ratio": gain,
        "ratio_stderr": error,
    }
    lines = []
    for rate in measured.get("rates") or [{}]:
        names = ("request_rate", "requests", "completed", "failed", "good", "goodput", "cached_share")
        cells = {name: rate.get(name) for name in (*names, "achieved_request_rate", "tokens_per_second")}
        lines.append(head | cells | rate_cells(rate, ("ttft", "tpot"), ("median", "p99")) | tail)
    return lines


def _measured(record: Record, workload: str) -> dict[str, Any]:
    """What was measured of a workload; empty where nothing was."""
    return (record.value("workloads") or {}).get(workload, {})


def _best(measured: Mapping[str, Any]) -> dict[str, Any]:
    return next(rate for rate in measured["rates"] if rate["request_rate"] == measured["request_rate"])


def _error(measured: Mapping[str, Any]) -> float | None:
    """Standard error of the highest goodput: that of the share of good requests, with one good and one other added."""
    if not measured:
        return None
    best = _best(measured)
    return share_stderr(best["good"], best["requests"], added=1) * best["requests"] / best["seconds"]


def _ratio(cell: Cell, workload: str) -> tuple[float | None, float | None]:
    """A case's highest goodput over the baseline's, and its standard error: by counting or by turns, whichever is larger.

    The baseline is the one that was measured in turns with the case, where there is one.
    """
    own = _measured(cell.record, workload)
    base = own.get(BASELINE.variant) or _measured(cell.base, workload)
    if cell.case == BASELINE or not own or not base or not base["bounded"]:
        return None, None
    gain = ratio(own["goodput"], base["goodput"])
    if not gain:
        return gain, None
    error = gain * math.hypot(*(_error(measured) / measured["goodput"] for measured in (own, base)))
    mine, theirs = (_best(measured).get("goodputs", []) for measured in (own, base))
    if BASELINE.variant in own and len(theirs) > 1 and all(theirs):
        each = [one / other for one, other in zip(mine, theirs, strict=True)]
        error = max(error, mean_and_stderr(each)[1])
    return gain, error


def _bar(cell: Cell, workload: str) -> Bar:
    measured = _measured(cell.record, workload)
    if not measured:
        return Bar(None, note=cell.record.blank)
    gain, error = _ratio(cell, workload)
    sign = "" if measured["bounded"] else "≥ "
    text = f"{sign}{measured['goodput']:.3g}"
    if gain is not None:
        text += f"\n{sign}{gain:.2f}×" + (f"\n± {error:.2f}" if error is not None else "")
    return Bar(measured["goodput"], text=text, error=_error(measured))


def _mode(serving: Serving, point: str) -> str:
    """How the engine ran at a point: as it said itself, else as it was asked to."""
    modes = [record.engine.get("compilation") for record in serving.of(serving.models[0], point)]
    caching = "with" if serving.entry["points"][point].get("prefix_caching") else "without"
    return f"{next(filter(None, modes), point)},\n{caching} prefix caching".replace(", CUDA", ",\nCUDA")


def _machine(records: list[Record]) -> str:
    versions = {f"vLLM {record.engine.get('vllm')}" for record in records}
    dummy = "dummy weights" if any(record.dummy for record in records) else ""
    return ", ".join(filter(None, [conditions(records, software=False), *versions, dummy]))


def _notes(serving: Serving) -> list[str]:
    """What the workloads are, the limits, and what the numbers can say."""
    notes: dict[str, None] = {}
    for point, settings in serving.entry["points"].items():
        for name, workload in settings["workloads"].items():
            measured = filter(None, [_measured(cell.record, name) for cell in serving.cells(point=point)])
            limits = ", ".join(_LIMITS[limit].format(value) for limit, value in workload["goodput"].items())
            origin = next((_origin(one["source"]) for one in measured), "not measured")
            notes.setdefault(f"{workload['title']}: {origin}; good: {limits}.")
    return [
        *notes,
        "Rates rise until fewer requests a second are good; ≥: fewer never were. Between the rates asked nothing is known. Above "
        "a bar its value and, if the baseline's has an upper end, its ratio to that. ±: one standard error from counting good "
        "requests, as if each were good by itself, which in a queue they are not; of a ratio that was measured in turns that of "
        "the turns, if it is larger.",
    ]


def _origin(source: dict[str, Any]) -> str:
    lengths = (
        f"{source['mean_input_tokens']:,.0f} input and {source['mean_output_tokens']:,.0f} output tokens in the mean"
    )
    repeated = f", {source['repeated']:.0%} of the input repeated" if source["repeated"] else ", no input repeated"
    drawn = source["kind"] == "drawn"
    what = f"no recorded trace, but drawn from {source['id']}" if drawn else f"trace {source['id'].rsplit('/', 1)[-1]}"
    return f"{what} ({lengths}{repeated})"


KIND = serving_kind("figure", make, exactly={"models": 1})
