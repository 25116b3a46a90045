"""Latency by request rate: Figures 4 and B.1, and the blog's Figures 5, 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.drawing import (
    PAGE,
    STYLE,
    Bar,
    Drawing,
    Look,
    draw_bars,
    handle,
    headline,
    legend,
    limit_handle,
    look,
    wide_axis,
)
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    absent,
    captions,
    conditions,
    limit,
    ratio,
    read_claims,
    read_serving,
    status,
    value_of,
    with_claims,
)

_METRICS = {"ttft_ms": "Time to first\ntoken (ms)", "tpot_ms": "Time per output\ntoken (ms)"}
_METHODS = {"ngram": "n-gram"}


@dataclass(frozen=True)
class _Series:
    """One curve: a case at a point, and the baseline's record it is compared with."""

    point: str
    case: Case
    record: Record | None
    base: Record | None
    label: str
    appearance: Look

    @property
    def rates(self) -> list[dict[str, Any]]:
        return _rates(self.record)

    @property
    def highest(self) -> float | None:
        return value_of(self.record, "highest_sustained_rate")

    @property
    def highest_limit(self) -> float | None:
        """The baseline's highest sustained rate times the request speed-up that the FLOP count allows."""
        bound = limit(self.record)
        return self.base_highest * bound if self.base_highest and bound and self.case != BASELINE else None

    @property
    def base_highest(self) -> float | None:
        """The baseline's highest sustained rate; None where it sustained all that were tried."""
        return value_of(self.base, "highest_sustained_rate") if _bounded(self.base) else None


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one column a point, or one for all with `together`."""
    serving = read_serving(entry, files, "latency")
    claims = read_claims(serving, files)
    columns = [[_series(serving, point, case) for case in serving.cases] for point in serving.points]
    if entry.get("together"):
        columns = [[each for same in zip(*columns, strict=True) for each in same]]
    single = len(columns) == 1
    titles = [_input(entry, {each.point for each in series}) for series in columns]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.4 if single else 6.4), layout="constrained")
        axes = figure.subplots(1, 3, squeeze=False).T if single else figure.subplots(3, len(columns), squeeze=False)
        for number, (title, series) in enumerate(zip(titles, columns, strict=True)):
            for row, (metric, label) in enumerate(_METRICS.items()):
                _curves(axes[row, number], series, metric)
                axes[row, number].set_ylabel(label if single or number == 0 else "")
                axes[row, number].set_xlabel("Requests a second")
            axes[1, number].set_xlim(axes[0, number].get_xlim())  # which has the marks of the highest rates too
            draw_bars(axes[2, number], [""], [(each.appearance, [_highest_bar(each)]) for each in series])
            axes[2, number].set_ylabel("Highest sustained\nrequests a second" if single or number == 0 else "")
            if not single:
                axes[0, number].set_title(title, pad=9)
        above, _ = captions(serving)
        headline(figure, *above, *(titles if single else []))
        notes = [*entry.get("notes", []), *serving.absences()]
        legend(figure, [*_handles(columns), *_keys()], [claim["text"] for claim in claims], notes)
    return Drawing(figure, with_claims(frame(serving), claims))


def frame(serving: Serving) -> pd.DataFrame:
    """What the curves show: one row a point, case and request rate, times in milliseconds.

    `ttft_reduction_percent` and `tpot_reduction_percent` are of the medians, against the baseline at the same rate:
    only where that is one of the point's own rates, as those a search adds differ between variants.
    `baseline_sustained` says whether the baseline kept up with that rate; where it did not, its times grow with the
    length of the measurement. `highest_sustained_rate` and what the FLOP count allows repeat in every row of a curve;
    the rate is a lower bound where `boundary_found` is false.
    """
    rows = []
    model = serving.models[0]
    for point, settings in serving.entry["points"].items():
        for case in serving.cases:
            series = _series(serving, point, case)
            head = {
                "model": model,
                "title": serving.title(model),
                "point": point,
                "variant": case.variant,
                "kv_cache": case.kv_cache,
                "speculative": _speculative(serving.entry, point),
                "status": status(series.record),
                "reason": None if series.rates else serving.reason(point, model, case),
                "input_tokens": settings["input_tokens"],
                "conditions": conditions([series.record]) if series.record else None,
            }
            tail = {
                "highest_sustained_rate": series.highest,
                "boundary_found": _bounded(series.record) if series.rates else None,
                "highest_sustained_rate_limit": series.highest_limit,
                "sustained_rate_speedup": ratio(series.highest, series.base_highest),
                "request_speedup_limit": limit(series.record),
                "criterion": value_of(series.record, "criterion"),
            }
            grid = {each["request_rate"]: each for each in _rates(series.base)}
            for rate in series.rates or [{}]:
                names = ("request_rate", "requests", "completed", "failed", "achieved_request_rate")
                cells = {name: rate.get(name) for name in (*names, "tokens_per_second", "sustained")}
                on_grid = rate.get("request_rate") in settings["request_rates"]
                same = grid.get(rate.get("request_rate"), {}) if on_grid else {}
                for metric in _METRICS:
                    for statistic in ("mean", "median", "p99"):
                        cells[f"{metric.removesuffix('_ms')}_{statistic}_ms"] = rate.get(metric, {}).get(statistic)
                for metric in _METRICS:
                    part = ratio(rate.get(metric, {}).get("median"), same.get(metric, {}).get("median"))
                    cells[f"{metric.removesuffix('_ms')}_reduction_percent"] = (
                        None if part is None else 100 * (1 - part)
                    )
                cells["baseline_sustained"] = same.get("sustained")
                rows.append({**head, **cells, **tail})
    return pd.DataFrame(rows)


def _series(serving: Serving, point: str, case: Case) -> _Series:
    model = serving.models[0]
    second = _speculative(serving.entry, point)
    if serving.entry.get("together"):  # all are held against the baseline without speculation
        plain = [name for name in serving.points if not _speculative(serving.entry, name)]
        base = next((found for name in plain if (found := serving.find(name, model, BASELINE))), None)
    else:
        base = serving.find(point, model, BASELINE)
    method = (serving.entry["points"][point].get("speculative") or {}).get("method")
    label = serving.label(case) + (f", {_METHODS.get(method, method)} speculation" if second else "")
    return _Series(point, case, serving.find(point, model, case), base, label, look(*case, second))


def _rates(record: Record | None) -> list[dict[str, Any]]:
    return sorted(value_of(record, "rates") or [], key=lambda rate: rate["request_rate"])


def _bounded(record: Record | None) -> bool:
    """Whether a rate was measured that could not be sustained; else the highest sustained one is a lower bound."""
    return any(not rate.get("sustained", True) for rate in _rates(record))


def _speculative(entry: Entry, point: str) -> bool:
    return bool(entry["points"][point].get("speculative"))


def _input(entry: Entry, points: set[str]) -> str:
    """What the requests of a column are."""
    found = []
    for settings in (entry["points"][point] for point in entry["points"] if point in points):
        chats = f"held-out chats, up to {settings['input_tokens']:,} input tokens"
        found.append(chats if settings.get("dataset") else f"{settings['input_tokens']:,} input tokens")
    return "; ".join(dict.fromkeys(found))


def _curves(axis, series: Sequence[_Series], metric: str) -> None:
    """Median with markers and p99 dotted; open markers are rates that were not sustained."""
    absences = []
    for each in series:
        if not each.rates:
            absences.append(f"{each.label}: {absent(each.record)}")
            continue
        color, rates = each.appearance.color, [rate["request_rate"] for rate in each.rates]
        median, p99 = ([_number(rate[metric][name]) for rate in each.rates] for name in ("median", "p99"))
        axis.plot(rates, p99, color=color, linewidth=0.8, linestyle=":")
        axis.plot(rates, median, color=color, linestyle=each.appearance.line)
        for rate, value in zip(each.rates, median, strict=True):
            fill = color if rate.get("sustained", True) else "white"
            axis.plot(rate["request_rate"], value, color=color, marker=each.appearance.marker, markerfacecolor=fill)
        for place, filled in ((each.highest, True), (each.highest_limit, False)):
            if place and metric == "ttft_ms":
                axis.plot(place, 1.03, marker="v", color=color, markerfacecolor=color if filled else "white",
                          markersize=4, transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip
    if absences:
        axis.text(0.03, 0.97, "\n".join(absences), transform=axis.transAxes, va="top", fontsize=6)
    drawn = [rate for each in series for rate in each.rates]
    values = [_number(rate[metric][statistic]) for rate in drawn for statistic in ("median", "p99")]
    wide_axis(axis.xaxis, [rate["request_rate"] for rate in drawn])
    wide_axis(axis.yaxis, [value for value in values if not math.isnan(value)])


def _number(value: float | None) -> float:
    """A time, or nan where no request was completed."""
    return math.nan if value is None else value


def _highest_bar(each: _Series) -> Bar:
    if not each.rates:
        return Bar(None, note=absent(each.record))
    if each.highest is None:
        return Bar(None, note="none")
    gain = ratio(each.highest, each.base_highest)
    known = gain is not None and each.record is not each.base
    sign = "" if _bounded(each.record) else "≥ "
    return Bar(
        each.highest, each.highest_limit, f"{sign}{each.highest:.3g}" + (f"\n{sign}{gain:.2f}×" if known else "")
    )


def _handles(columns: Sequence[Sequence[_Series]]) -> list[Any]:
    found = {each.label: handle(each.appearance, each.label) for series in columns for each in series}
    return list(found.values())


def _keys() -> list[Any]:
    """What the signs mean that all curves share."""
    gray = "0.4"
    return [
        Line2D([], [], color=gray, marker="o", label="median"),
        Line2D([], [], color=gray, linewidth=0.8, linestyle=":", label="99th percentile"),
        Line2D([], [], color=gray, marker="o", markerfacecolor="white", label="rate not sustained"),
        Line2D([], [], color=gray, marker="v", linestyle="", label="highest sustained rate"),
        Line2D(
            [], [], color=gray, marker="v", markerfacecolor="white", linestyle="", label="highest rate the FLOPs allow"
        ),
        limit_handle(),
    ]


KIND = Kind(
    "figure",
    ("models", "variants", "points"),
    needs,
    make,
    own={"together": bool},
    optional=("together",),
    exactly={"models": 1},
)
