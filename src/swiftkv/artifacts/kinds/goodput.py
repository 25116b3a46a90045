"""Requests a second within stated limits, by workload: one panel a point, which is one way to run the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.drawing import PAGE, STYLE, Bar, Drawing, draw_bars, handle, headline, legend, look
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    conditions,
    ratio,
    read_serving,
)

_LIMITS = {
    "ttft": "its first token within {:,g} ms", "tpot": "{:,g} ms a further token", "e2el": "its last within {:,g} ms",
}  # fmt: skip


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Drawing:
    """The highest goodput of one model, grouped by workload; above a bar its ratio to the baseline's."""
    serving = read_serving(entry, files, "goodput", apart=True)
    (model,), points = serving.models, serving.points
    records = serving.of(model)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.6), layout="constrained")
        axes = figure.subplots(
            1, len(points), squeeze=False, width_ratios=[_width(serving, point) for point in points]
        )[0]
        for axis, point in zip(axes, points, strict=True):
            workloads = entry["points"][point]["workloads"]
            series = [
                (look(*case), [_bar(serving, point, case, workload) for workload in workloads])
                for case in serving.cases
            ]
            draw_bars(axis, [workload["title"] for workload in workloads.values()], series)
            axis.set_title(_mode(serving, point), fontsize=7)
        axes[0].set_ylabel("Good requests a second")
        title = f"{serving.title(model)}: {entry['title']} ({entry['label']})"
        headline(figure, title, _machine(records))
        handles = [handle(look(*case), serving.label(case), bars=True) for case in serving.cases]
        legend(figure, handles, notes=[*_notes(serving), *entry.get("notes", []), *serving.absences()])
    return Drawing(figure, frame(serving))


def frame(serving: Serving) -> pd.DataFrame:
    """What the bars show: one row a point, workload, case and measured rate; what is of all rates repeats in each.

    `highest_goodput` is the most good requests a second at any rate; a lower bound where `bounded` is false. Standard
    errors are those of counting good requests, as if each were good or not by itself. `ratio` is to the baseline's
    highest goodput; there is none where that is a lower bound or zero. Times are in milliseconds.
    """
    rows = []
    (model,) = serving.models
    for point, settings in serving.entry["points"].items():
        for workload, asked in settings["workloads"].items():
            for case in serving.cases:
                record, found = serving.find(point, model, case), _found(serving, point, case, workload)
                source = (found or {}).get("source", {})
                head = {
                    "model": model,
                    "title": serving.title(model),
                    "point": point,
                    "mode": record.engine.get("compilation"),
                    "prefix_caching": record.engine.get("prefix_caching"),
                    "workload": workload,
                    "source": source.get("id"),
                    "resolved": source.get("resolved"),
                    "variant": case.variant,
                    "kv_cache": case.kv_cache,
                    "status": record.status,
                    "reason": None if found else record.why,
                    "conditions": record.conditions() or None,
                    **{f"{name}_limit_ms": asked["goodput"].get(name) for name in _LIMITS},
                    **{name: source.get(name) for name in ("mean_input_tokens", "mean_output_tokens", "repeated")},
                }
                gain, error = _ratio(serving, point, case, workload)
                tail = {
                    "highest_goodput": (found or {}).get("goodput"),
                    "highest_goodput_stderr": _error(found),
                    "at_request_rate": (found or {}).get("request_rate"),
                    "bounded": (found or {}).get("bounded"),
                    "ratio": gain,
                    "ratio_stderr": error,
                }
                for rate in (found or {}).get("rates") or [{}]:
                    names = ("request_rate", "requests", "completed", "failed", "good", "goodput", "cached_share")
                    cells = {name: rate.get(name) for name in (*names, "achieved_request_rate", "tokens_per_second")}
                    for metric in ("ttft", "tpot"):
                        for statistic in ("median", "p99"):
                            cells[f"{metric}_{statistic}_ms"] = rate.get(f"{metric}_ms", {}).get(statistic)
                    rows.append({**head, **cells, **tail})
    return pd.DataFrame(rows)


def _found(serving: Serving, point: str, case: Case, workload: str) -> dict[str, Any] | None:
    """What was measured of a workload; None where nothing was."""
    return (serving.find(point, serving.models[0], case).value("workloads") or {}).get(workload)


def _error(found: dict[str, Any] | None) -> float | None:
    """Standard error of the highest goodput.

    It is that of a share of the requests; one good and one other are added, or all good would be without error.
    """
    if found is None:
        return None
    best = next(rate for rate in found["rates"] if rate["request_rate"] == found["request_rate"])
    count, good = best["requests"] + 2, best["good"] + 1
    return math.sqrt(good / count * (1 - good / count) / count) * best["requests"] / best["seconds"]


def _ratio(serving: Serving, point: str, case: Case, workload: str) -> tuple[float | None, float | None]:
    """A case's highest goodput over the baseline's, and its standard error."""
    base, found = (_found(serving, point, each, workload) for each in (BASELINE, case))
    if case == BASELINE or base is None or found is None or not base["bounded"]:
        return None, None
    gain = ratio(found["goodput"], base["goodput"])
    if not gain:
        return gain, None
    return gain, gain * math.hypot(*(_error(each) / each["goodput"] for each in (found, base)))


def _bar(serving: Serving, point: str, case: Case, workload: str) -> Bar:
    found = _found(serving, point, case, workload)
    if found is None:
        return Bar(None, note=serving.find(point, serving.models[0], case).blank)
    gain, error = _ratio(serving, point, case, workload)
    sign = "" if found["bounded"] else "≥ "
    text = f"{sign}{found['goodput']:.3g}"
    if gain is not None:
        text += f"\n{sign}{gain:.2f}×" + (f"\n± {error:.2f}" if error is not None else "")
    return Bar(found["goodput"], text=text, error=_error(found))


def _width(serving: Serving, point: str) -> float:
    """Room for a panel: as much as it has groups, and never so little that its title does not fit."""
    return max(1.5, len(serving.entry["points"][point]["workloads"]))


def _mode(serving: Serving, point: str) -> str:
    """How the engine ran at a point: as it said itself, else as it was asked to."""
    records = serving.of(serving.models[0], [point])
    settings = serving.entry["points"][point]
    mode = next((record.engine.get("compilation") for record in records if record.engine.get("compilation")), None)
    caching = "with" if settings.get("prefix_caching") else "without"
    return f"{mode or point},\n{caching} prefix caching".replace(", CUDA", ",\nCUDA")


def _machine(records: Sequence[Record]) -> str:
    parts = [conditions(records, software=False), *{f"vLLM {record.engine.get('vllm')}" for record in records}]
    if any(record.dummy for record in records):
        parts.append("dummy weights")
    return ", ".join(filter(None, parts))


def _notes(serving: Serving) -> list[str]:
    """What the workloads are, the limits, and what the numbers can say."""
    notes: dict[str, None] = {}
    for point, settings in serving.entry["points"].items():
        for workload, asked in settings["workloads"].items():
            sources = [found["source"] for case in serving.cases if (found := _found(serving, point, case, workload))]
            limits = ", ".join(_LIMITS[name].format(value) for name, value in asked["goodput"].items())
            origin = _origin(sources[0]) if sources else "not measured"
            notes.setdefault(f"{asked['title']}: {origin}; good: {limits}.")
    seconds = sorted({settings["seconds"] for settings in serving.entry["points"].values()})
    return [
        *notes,
        f"{' or '.join(f'{each:g}' for each in seconds)} s of arrivals a rate, rates rising until fewer requests a second "
        "were good; ≥: they did not. Between the rates asked nothing is known. Above a bar its value and, if the baseline's "
        "has an upper end, its ratio to that. ±: one standard error from counting good requests, as if each were good by "
        "itself; in a queue they are not, and how the machine scatters is not in it.",
    ]


def _origin(source: dict[str, Any]) -> str:
    lengths = (
        f"{source['mean_input_tokens']:,.0f} input and {source['mean_output_tokens']:,.0f} output tokens in the mean"
    )
    repeated = f", {source['repeated']:.0%} of the input repeated" if source["repeated"] else ", no input repeated"
    drawn = source["kind"] == "drawn"
    what = f"no recorded trace, but drawn from {source['id']}" if drawn else f"trace {source['id'].rsplit('/', 1)[-1]}"
    return f"{what} ({lengths}{repeated})"


KIND = Kind("figure", ("models", "variants", "points"), needs, make, exactly={"models": 1})
