"""Latency by request rate: Figures 4 and B.1, and the blog's Figures 5, 6 and 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    PAGE,
    Bar,
    Drawing,
    Look,
    draw_bars,
    handle,
    headline,
    legend,
    limit_handle,
    line_entry,
    new_figure,
    wide_axis,
)
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.records import Record
from pipeline.artifacts.serving import BASELINE, Cell, rate_cells, ratio, read_serving, serving_kind
from pipeline.statistics import bracket

_METRICS = {"ttft": "Time to first\ntoken (ms)", "tpot": "Time per output\ntoken (ms)"}
_METHODS = {"ngram": "n-gram"}


class _Curve(Cell):
    """One curve: a case at a point, and the baseline it is compared with."""

    @property
    def base(self) -> Record:
        if not self.serving.entry.get("together"):
            return super().base
        # All are held against the baseline without speculation.
        cells = [_Curve(self.serving, self.model, point, BASELINE) for point in self.serving.points]
        plain = [cell.record for cell in cells if not cell.speculative]
        return next((record for record in plain if record.exists), Record("latency", {}, *BASELINE))

    @property
    def speculative(self) -> bool:
        return bool(self.settings.get("speculative"))

    @property
    def label(self) -> str:
        label, method = self.serving.label(self.case), (self.settings.get("speculative") or {}).get("method")
        return label + (f", {_METHODS.get(method, method)} speculation" if self.speculative else "")

    @property
    def look(self) -> Look:
        return self.serving.look(self.case, self.speculative)

    @property
    def rates(self) -> list[dict[str, Any]]:
        return _rates(self.record)

    @property
    def boundary(self) -> float | None:
        """The highest sustained rate, if a rate above it was tried and not sustained."""
        low, high = _bracket(self.record)
        return low if high else None

    @property
    def limit(self) -> float | None:
        """The gain that the FLOP count allows; with speculation against none it says nothing."""
        return self.record.limit() if self.case != BASELINE and not self.speculative else None

    @property
    def highest_limit(self) -> float | None:
        """What no sustained rate can exceed by FLOPs: the lowest that the baseline does not sustain, times `limit`."""
        low, high = _bracket(self.base)
        return high * self.limit if low and high and self.limit else None

    @property
    def gain(self) -> tuple[float | None, float | None]:
        """The least and the most that the highest sustainable rate is of the baseline's: each lies in its own bracket."""
        (low, high), (base_low, base_high) = _bracket(self.record), _bracket(self.base)
        if not (low and base_low and base_high) or self.record is self.base:
            return None, None
        return low / base_high, ratio(high, base_low)


def make(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one column a point, or one for all with `together`."""
    serving = read_serving(entry, files, "latency")
    claims = serving.claims(files)
    curves = [_Curve(serving, cell.model, cell.point, cell.case) for cell in serving.cells()]
    columns = [[curve for curve in curves if curve.point == point] for point in serving.points]
    titles = [_input(column[0]) for column in columns]
    if entry.get("together"):
        columns = [[curve for case in serving.cases for curve in curves if curve.case == case]]
        titles = ["; ".join(dict.fromkeys(titles))]
    single = len(columns) == 1
    figure = new_figure(PAGE, 3.4 if single else 6.4)
    axes = figure.subplots(1, 3, squeeze=False).T if single else figure.subplots(3, len(columns), squeeze=False)
    for number, (title, column) in enumerate(zip(titles, columns, strict=True)):
        for row, (metric, label) in enumerate(_METRICS.items()):
            _curves(axes[row, number], column, f"{metric}_ms")
            axes[row, number].set_ylabel(label if single or number == 0 else "")
            axes[row, number].set_xlabel("Requests a second")
        axes[1, number].set_xlim(axes[0, number].get_xlim())  # which has the marks of the highest rates too
        draw_bars(axes[2, number], [""], [(curve.look, [_highest_bar(curve)]) for curve in column])
        axes[2, number].set_ylabel("Highest sustained\nrequests a second" if single or number == 0 else "")
        if not single:
            axes[0, number].set_title(title, pad=9)
    headline(figure, *serving.captions()[0], *(titles if single else []))
    handles = {curve.label: handle(curve.look, curve.label) for column in columns for curve in column}
    legend(figure, [*handles.values(), *_keys(curves)], [claim["text"] for claim in claims], serving.notes)
    data = pd.DataFrame([line for curve in curves for line in _lines(curve)])
    return Drawing(figure, serving.with_claims(data, claims))


def _lines(curve: _Curve) -> list[dict[str, Any]]:
    """What a curve shows: one row a request rate, times in milliseconds.

    `ttft_reduction_percent` and `tpot_reduction_percent` are of the medians, against the baseline at the same rate:
    only where that is one of the point's own rates, as those a search adds differ between variants.
    `baseline_sustained` says whether the baseline kept up with that rate; where it did not, its times grow with the
    length of the measurement. What is of all rates repeats in every row of a curve. The highest rate that can be sustained
    lies between `highest_sustained_rate` and `lowest_unsustained_rate`; where `boundary_found` is false there is no such
    rate, and no upper end. So `sustained_rate_speedup` lies between its `_least` and its `_most`; it is the middle, and its
    standard error that of a uniform distribution between the two.
    """
    head = curve.place | curve.variant | {"speculative": curve.speculative} | curve.state(curve.rates)
    asked = ("input_tokens", "output_tokens", "seconds", "min_requests")
    head |= {name: curve.settings.get(name) for name in asked} | {"conditions": curve.record.conditions()}
    low, high = _bracket(curve.record)
    least, most = curve.gain
    middle, error = bracket(least, most) if least is not None and most is not None else (None, None)
    tail = {
        "highest_sustained_rate": low,
        "lowest_unsustained_rate": high,
        "boundary_found": high is not None if curve.rates else None,
        "highest_sustained_rate_limit": curve.highest_limit,
        "sustained_rate_speedup": middle,
        "sustained_rate_speedup_stderr": error,
        "sustained_rate_speedup_least": least,
        "sustained_rate_speedup_most": most,
        "sustained_rate_speedup_limit": curve.limit,
        "criterion": curve.record.value("criterion"),
    }
    base, lines = {rate["request_rate"]: rate for rate in _rates(curve.base)}, []
    for rate in curve.rates or [{}]:
        names = ("request_rate", "requests", "completed", "failed", "achieved_request_rate")
        cells = {name: rate.get(name) for name in (*names, "tokens_per_second", "sustained")}
        on_grid = rate.get("request_rate") in curve.settings["request_rates"]
        same = base.get(rate.get("request_rate"), {}) if on_grid else {}
        cells |= rate_cells(rate, _METRICS, ("mean", "median", "p99"))
        for metric in _METRICS:
            part = ratio(*(times.get(f"{metric}_ms", {}).get("median") for times in (rate, same)))
            cells[f"{metric}_reduction_percent"] = None if part is None else 100 * (1 - part)
        lines.append(head | cells | {"baseline_sustained": same.get("sustained")} | tail)
    return lines


def _rates(record: Record) -> list[dict[str, Any]]:
    return sorted(record.value("rates") or [], key=lambda rate: rate["request_rate"])


def _bracket(record: Record) -> tuple[float | None, float | None]:
    """The highest rate that was sustained, and the next, which was not; None where there is none."""
    return record.value("highest_sustained_rate"), record.value("lowest_unsustained_rate")


def _input(curve: _Curve) -> str:
    """What the requests of a curve are."""
    chats = "held-out chats, up to " if curve.settings.get("dataset") else ""
    return f"{chats}{curve.settings['input_tokens']:,} input tokens"


def _curves(axis, curves: Sequence[_Curve], metric: str) -> None:
    """Median with markers and p99 dotted; open markers are rates that were not sustained."""
    absences = []
    for curve in curves:
        if not curve.rates:
            absences.append(f"{curve.label}: {curve.record.blank}")
            continue
        color, rates = curve.look.color, [rate["request_rate"] for rate in curve.rates]
        median, p99 = ([_number(rate[metric][name]) for rate in curve.rates] for name in ("median", "p99"))
        axis.plot(rates, p99, color=color, linewidth=0.8, linestyle=":")
        axis.plot(rates, median, color=color, linestyle=curve.look.line)
        for rate, value in zip(curve.rates, median, strict=True):
            fill = color if rate.get("sustained", True) else "white"
            axis.plot(rate["request_rate"], value, color=color, marker=curve.look.marker, markerfacecolor=fill)
        for place, filled in ((curve.boundary, True), (curve.highest_limit, False)):
            if place and metric == "ttft_ms":
                axis.plot(place, 1.03, marker="v", color=color, markerfacecolor=color if filled else "white",
                          markersize=4, transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip
    if absences:
        axis.text(0.03, 0.97, "\n".join(absences), transform=axis.transAxes, va="top", fontsize=6)
    drawn = [rate for curve in curves for rate in curve.rates]
    values = [_number(rate[metric][statistic]) for rate in drawn for statistic in ("median", "p99")]
    wide_axis(axis.xaxis, [rate["request_rate"] for rate in drawn])
    wide_axis(axis.yaxis, [value for value in values if not math.isnan(value)])


def _number(value: float | None) -> float:
    """A time, or nan where no request was completed."""
    return math.nan if value is None else value


def _highest_bar(curve: _Curve) -> Bar:
    (low, high), (least, most) = _bracket(curve.record), curve.gain
    if low is None:
        return Bar(None, note="none" if curve.rates else curve.record.blank)
    text = f"≥ {low:.3g}" if high is None else f"{low:.3g} to {high:.3g}"
    if least is not None:
        text += f"\n≥ {least:.2f}×" if most is None else f"\n{least:.2f} to {most:.2f}×"
    error = None if high is None else (0.0, high - low)
    return Bar(low, curve.highest_limit, text, error=error)


def _keys(curves: Sequence[_Curve]) -> list[Any]:
    """What the signs mean that curves share, of those that are drawn."""
    gray = "0.4"
    keys = [
        line_entry("median", color=gray, marker="o"),
        line_entry("99th percentile", color=gray, linewidth=0.8, linestyle=":"),
    ]
    if any(not rate.get("sustained", True) for curve in curves for rate in curve.rates):
        keys.append(line_entry("rate not sustained", color=gray, marker="o", markerfacecolor="white"))
    if any(curve.boundary for curve in curves):
        keys.append(line_entry("highest sustained rate", color=gray, marker="v", linestyle=""))
    if any(curve.highest_limit for curve in curves):
        empty = {"color": gray, "marker": "v", "markerfacecolor": "white", "linestyle": ""}
        keys += [line_entry("highest rate the FLOPs allow", **empty), limit_handle()]
    return keys


KIND = serving_kind("figure", make, own={"together": bool}, optional=("together",), exactly={"models": 1})
