"""Figure 4 as the model of time predicts it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from swiftkv.artifacts.drawing import Drawing
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.kinds import latency
from swiftkv.artifacts.predicted import extra, read_predicted
from swiftkv.measure.kind import Numbers, requested
from swiftkv.measure.latency import number_of_requests
from swiftkv.measure.point import Point
from swiftkv.measure.rates import search
from swiftkv.points import Latency
from swiftkv.predict.engine import Limits, poisson, run
from swiftkv.predict.step import Served


def make(entry: Entry, files: Files) -> Drawing:
    """The curves of `latency`, dashed, and its bars, hatched; its CSV says "predicted" in the column `row`."""
    return latency.draw(read_predicted(entry, files, "latency", _numbers), files)


def _numbers(served: Served, limits: Limits, point: Point[Latency], config: Mapping[str, Any]) -> Numbers | None:
    """The rates that a measurement would try, each with Poisson arrivals of the point's seed."""
    prompt, output = requested(point)
    if limits.cache is not None and limits.cache < prompt + output:
        return None

    def measure(rate: float) -> dict[str, Any]:
        count = number_of_requests(point, rate)
        timing = run(served, limits, prompt, output, poisson(rate, count, point.seed))
        assert timing is not None  # one request fits
        requests = list(zip(timing.arrived, timing.first, timing.last, strict=True))
        return {
            "request_rate": rate,
            "requests": count,
            "completed": count,
            "failed": 0,
            "seconds": timing.seconds,
            "achieved_request_rate": count / timing.seconds,
            "tokens_per_second": count * (prompt + output) / timing.seconds,
            "ttft_ms": _spread([first - arrived for arrived, first, _ in requests]),
            "tpot_ms": _spread([(last - first) / max(1, output - 1) for _, first, last in requests]),
            "e2e_ms": _spread([last - arrived for arrived, _, last in requests]),
        }

    return search(point.settings.request_rates, measure, point.settings.refine_steps)


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile in milliseconds."""
    ordered = sorted(1000 * each for each in seconds)
    last = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return {"mean": statistics.fmean(ordered), "median": statistics.median(ordered), "p99": last}


KIND = ArtifactKind(
    "figure",
    ("models", "variants", "points"),
    ("dimensions", "devices"),
    make,
    exactly={"models": 1},
    extra=extra,
)
