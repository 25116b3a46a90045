"""Figures of interactive inference: Figures 4 and B.1, and the blog's Figures 5, 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from swiftkv.artifacts.figures import PAGE, STYLE
from swiftkv.artifacts.inputs import Record
from swiftkv.artifacts.plots import (
    Bar,
    Look,
    draw_bars,
    handle,
    headings,
    legend,
    limit_handle,
    look,
    wide_axis,
)
from swiftkv.artifacts.serving import BASELINE, Case, Serving, absent, check_comparable, limit, ratio
from swiftkv.artifacts.serving_figures import claims, with_claims
from swiftkv.errors import UserError

_METRICS = {"ttft_ms": "Time to first\ntoken (ms)", "tpot_ms": "Time per output\ntoken (ms)"}


@dataclass(frozen=True)
class _Series:
    """One curve: a case at a point."""

    case: Case
    record: Record | None
    base: Record | None
    label: str
    appearance: Look

    @property
    def rates(self) -> list[dict[str, Any]]:
        rates = self.record["result"]["rates"] if self.record and self.record["status"] == "ok" else []
        return sorted(rates, key=lambda entry: entry["request_rate"])

    @property
    def highest(self) -> float | None:
        return _highest(self.record)

    @property
    def highest_limit(self) -> float | None:
        """The baseline's highest sustained rate times the request speed-up that the FLOP count allows."""
        base, bound = _highest(self.base), limit(self.record)
        return base * bound if base and bound and self.case != BASELINE else None


def _highest(record: Record | None) -> float | None:
    return record["result"].get("highest_sustained_rate") if record and record["status"] == "ok" else None


def _bounded(record: Record | None) -> bool:
    """Whether a rate was measured that could not be sustained; else the highest sustained one is a lower bound."""
    return bool(record) and any(not rate.get("sustained", True) for rate in record["result"]["rates"])


def latency_frame(serving: Serving) -> pd.DataFrame:
    """What the curves show: one row a point, case and request rate, times in milliseconds.

    `highest_sustained_rate` and what the FLOP count allows repeat in every row of a curve; the rate is a lower bound
    where `boundary_found` is false.
    """
    rows = []
    for model in serving.models:
        for point in serving.points:
            base = serving.find(point, model, BASELINE)
            for case in serving.cases:
                series = _series(serving, model, point, case, base)
                settings = (series.record or {}).get("settings") or {}
                head = {
                    "model": model,
                    "title": serving.title(model),
                    "point": point,
                    "variant": case.variant,
                    "kv_cache": case.kv_cache,
                    "speculative": _speculative(series.record),
                    "status": series.record["status"] if series.record else "missing",
                    "input_tokens": settings.get("input_tokens"),
                }
                tail = {
                    "highest_sustained_rate": series.highest,
                    "boundary_found": _bounded(series.record) if series.rates else None,
                    "highest_sustained_rate_limit": series.highest_limit,
                    "sustained_rate_speedup": ratio(series.highest, _highest(base)),
                    "request_speedup_limit": limit(series.record),
                    "criterion": ((series.record or {}).get("result") or {}).get("criterion"),
                }
                for entry in series.rates or [{}]:
                    names = ("request_rate", "requests", "completed", "failed", "achieved_request_rate")
                    cells = {name: entry.get(name) for name in (*names, "tokens_per_second", "sustained")}
                    for metric in _METRICS:
                        for statistic in ("mean", "median", "p99"):
                            cells[f"{metric.removesuffix('_ms')}_{statistic}_ms"] = entry.get(metric, {}).get(statistic)
                    rows.append({**head, **cells, **tail})
    return pd.DataFrame(rows)


def latency_figure(serving: Serving, name: str, item: str) -> tuple[Figure, pd.DataFrame]:
    """Figure 4 and its like: TTFT, TPOT and the highest sustained rate; one column an input length.

    Args:
        serving: one model; a point is an input length.
        name: the artifact, whose published claims are looked up.
        item: what the paper calls it, such as "paper's Figure 4".

    Raises:
        UserError: several models, or records of different hardware or engines.
    """
    model = _only_model(serving, item)
    columns = []
    for point in serving.points:
        base = serving.find(point, model, BASELINE)
        columns.append((_column_title(serving, model, [point]),
                        [_series(serving, model, point, case, base) for case in serving.cases]))  # fmt: skip
    return _figure(serving, name, f"latency by request rate ({item})", columns)


def speculation_figure(serving: Serving) -> tuple[Figure, pd.DataFrame]:
    """The blog's Figure 7: every case without and with n-gram speculation (the points), in one set of panels.

    Raises:
        UserError: several models, or records of different hardware or engines.
    """
    model = _only_model(serving, "the blog's Figure 7")
    base = next((found for point in serving.points if (found := serving.find(point, model, BASELINE))
                 and not _speculative(found)), None)  # fmt: skip
    series = [_series(serving, model, point, case, base) for case in serving.cases for point in serving.points]
    what = "latency without and with n-gram speculation (blog's Figure 7)"
    return _figure(serving, "blog_figure7", what, [(_column_title(serving, model, serving.points), series)])


def _only_model(serving: Serving, where: str) -> str:
    if len(serving.models) != 1:
        raise UserError(f"{where} shows one model, not {len(serving.models)}")
    check_comparable(serving.of(serving.models[0]), where)
    return serving.models[0]


def _speculative(record: Record | None) -> bool:
    return bool(record and record["settings"].get("speculative"))


def _series(serving: Serving, model: str, point: str, case: Case, base: Record | None) -> _Series:
    record = serving.find(point, model, case)
    label, second = serving.label(case), _speculative(record)
    return _Series(case, record, base, label + (", n-gram speculation" if second else ""), look(case, second))


def _column_title(serving: Serving, model: str, points: Sequence[str]) -> str:
    record = next(iter(serving.of(model, points)), None)
    settings = record["settings"] if record else {}
    if settings.get("dataset", "random") != "random":
        return "held-out chats"
    return f"{settings['input_tokens']:,} input tokens" if settings.get("input_tokens") else " ".join(points)


def _figure(
    serving: Serving, name: str, what: str, columns: Sequence[tuple[str, Sequence[_Series]]]
) -> tuple[Figure, pd.DataFrame]:
    """Three panels a column, below each other; a single column lies on its side."""
    single = len(columns) == 1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.0 if single else 6.4), layout="constrained")
        axes = figure.subplots(1, 3, squeeze=False).T if single else figure.subplots(3, len(columns), squeeze=False)
        for number, (title, series) in enumerate(columns):
            for row, (metric, label) in enumerate(_METRICS.items()):
                _curves(axes[row, number], series, metric)
                axes[row, number].set_ylabel(label if single or number == 0 else "")
                axes[row, number].set_xlabel("Requests a second")
            draw_bars(axes[2, number], [""], [(entry.appearance, [_highest_bar(entry)]) for entry in series])
            axes[2, number].set_ylabel("Highest sustained\nrequests a second" if single or number == 0 else "")
            if not single:
                axes[0, number].set_title(title, pad=9)
        headings(figure, serving, f"{what}, {columns[0][0]}" if single else what)
        found = claims(serving, name)
        legend(figure, [*_handles(columns), *_keys()], found)
    return figure, with_claims(latency_frame(serving), found)


def _curves(axis, series: Sequence[_Series], metric: str) -> None:
    """Median with markers and p99 dotted; open markers are rates that were not sustained."""
    absences = []
    for entry in series:
        if not entry.rates:
            absences.append(f"{entry.label}: {absent(entry.record)}")
            continue
        color, rates = entry.appearance.color, [rate["request_rate"] for rate in entry.rates]
        median, p99 = ([_number(rate[metric][name]) for rate in entry.rates] for name in ("median", "p99"))
        axis.plot(rates, p99, color=color, linewidth=0.8, linestyle=":")
        axis.plot(rates, median, color=color, linestyle=entry.appearance.line)
        for rate, value in zip(entry.rates, median, strict=True):
            fill = color if rate.get("sustained", True) else "white"
            axis.plot(rate["request_rate"], value, color=color, marker=entry.appearance.marker, markerfacecolor=fill)
        for place, filled in ((entry.highest, True), (entry.highest_limit, False)):
            if place and metric == "ttft_ms":
                axis.plot(place, 1.03, marker="v", color=color, markerfacecolor=color if filled else "white",
                          markersize=4, transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip
    if absences:
        axis.text(0.03, 0.97, "\n".join(absences), transform=axis.transAxes, va="top", fontsize=6)
    drawn = [rate for entry in series for rate in entry.rates]
    values = [_number(rate[metric][statistic]) for rate in drawn for statistic in ("median", "p99")]
    wide_axis(axis.xaxis, [rate["request_rate"] for rate in drawn])
    wide_axis(axis.yaxis, [value for value in values if not math.isnan(value)])


def _number(value: float | None) -> float:
    """A time, or nan where no request was completed."""
    return math.nan if value is None else value


def _highest_bar(entry: _Series) -> Bar:
    if not entry.rates:
        return Bar(None, note=absent(entry.record))
    if entry.highest is None:
        return Bar(None, note="none")
    gain = ratio(entry.highest, _highest(entry.base))
    known = gain is not None and entry.record is not entry.base and _bounded(entry.base)
    sign = "" if _bounded(entry.record) else "≥ "
    return Bar(
        entry.highest, entry.highest_limit, f"{sign}{entry.highest:.3g}" + (f"\n{sign}{gain:.2f}×" if known else "")
    )


def _handles(columns: Sequence[tuple[str, Sequence[_Series]]]) -> list[Any]:
    found: dict[tuple[Case, bool], Any] = {}
    for _, series in columns:
        for entry in series:
            key = (entry.case, entry.appearance.second)
            found.setdefault(key, handle(entry.appearance, entry.label, bars=False))
    return list(found.values())


def _keys() -> list[Any]:
    """What the signs mean that all curves share."""
    grey = "0.4"
    return [
        Line2D([], [], color=grey, marker="o", label="median"),
        Line2D([], [], color=grey, linewidth=0.8, linestyle=":", label="99th percentile"),
        Line2D([], [], color=grey, marker="o", markerfacecolor="white", label="rate not sustained"),
        Line2D([], [], color=grey, marker="v", linestyle="", label="highest sustained rate"),
        Line2D(
            [], [], color=grey, marker="v", markerfacecolor="white", linestyle="", label="highest rate the FLOPs allow"
        ),
        limit_handle(),
    ]
