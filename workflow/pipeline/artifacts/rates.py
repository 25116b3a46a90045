"""The numbers of a latency record: times at each request rate, and the highest rate that is sustained."""

from __future__ import annotations

import math
from typing import Any

from pipeline.artifacts import Content, MetricRows
from pipeline.artifacts.records import Record
from pipeline.statistics import Estimate, exact, of_turns, ratio_of_turns

P99_REQUESTS = 200  # fewer in a run have no 99th percentile of their own: it would be their slowest one or two


def latency_rows(record: Record) -> MetricRows:
    """Yield values by metric, and the other cells of their rows."""
    of_base = {rate["request_rate"]: rate for rate in record.base.result["rates"]} if record.base else {}
    for rate in record.result["rates"]:
        at, requests = rate["request_rate"], rate["completed"]
        values = {name: rate[name] for name in ("sustained", "achieved_request_rate")}
        # Where the baseline does not keep up, its times grow with the length of the measurement; rates that a search
        # added differ between variants.
        before = of_base.get(at, {}) if at in record.settings["request_rates"] else {}
        statistics = ["median", "mean", *(["p99"] if requests >= P99_REQUESTS * len(rate["runs"]) else [])]
        for name in ("ttft", "tpot"):
            if not min(_of_runs(rate, name, "median")):  # an answer of one token has no time per output token
                continue
            for statistic in statistics:
                values[f"{name}_{statistic}_ms"] = of_turns(_of_runs(rate, name, statistic))
            if before.get("sustained") and min(_of_runs(before, name, "median")):  # the same arrivals, run for run
                left = ratio_of_turns(*(_of_runs(one, name, "median") for one in (rate, before)))
                values[f"{name}_reduction_percent"] = left.complement().scaled(100)
            elif record.base is None and record.case.unchanged and rate["sustained"]:
                values[f"{name}_reduction_percent"] = exact(0.0)
        yield values, {"at": at, "n": requests}
    low, high = _bracket(record)
    highest = Estimate(low, None, low, high if low else None)
    yield {"highest_sustained_rate": highest, "sustained_rate_speedup": _rate_gain(record)}, {}


def _of_runs(rate: Content, name: str, statistic: str) -> list[float]:
    """Return a time of each run of one rate, in milliseconds."""
    return [run[f"{name}_ms"][statistic] for run in rate["runs"]]


def _bracket(record: Record) -> tuple[Any, Any]:
    return record.value("highest_sustained_rate"), record.value("lowest_unsustained_rate")


def _rate_gain(record: Record) -> Estimate | None:
    """Estimate how many times the baseline's rate is sustained: between the least and the most that both brackets allow.

    Where no measured rate was too high, it is the least, with an interval that is open above.
    """
    if record.base is None:
        return exact(1.0) if record.case.unchanged else None
    (low, high), (base_low, base_high) = _bracket(record), _bracket(record.base)
    if not (low and base_low and base_high):
        return None
    least, most = low / base_high, high / base_low if high else math.inf
    return Estimate((least + most) / 2 if high else least, None, least, most)
