"""Figure 4 as the model of time predicts it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from swiftkv.artifacts.drawing import Drawing
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.kinds import latency
from swiftkv.artifacts.predicted import Point, Result, extra, notes, read_predicted
from swiftkv.measure.rates import search
from swiftkv.predict.engine import Limits, poisson, run
from swiftkv.predict.step import Served


def make(entry: Entry, files: Files) -> Drawing:
    """The curves of `latency`, dashed, and its bars, hatched; its CSV says "predicted" in the column `row`."""
    entry = {**entry, "notes": notes(entry)}
    return latency.draw(read_predicted(entry, files, "latency", _result, _waiting), files)


def _waiting(point: Point) -> int:
    return 2 * point["engine"]["max_num_seqs"]


def _result(served: Served, limits: Limits, point: Point, config: Mapping[str, Any]) -> Result | None:
    """The rates that a measurement would try, each with Poisson arrivals of the point's seed."""
    prompt, output = point["input_tokens"], point["output_tokens"]
    if limits.cache is not None and limits.cache < prompt + output:
        return None

    def measure(rate: float) -> dict[str, Any]:
        count = max(point.get("min_requests", 1), round(rate * point["seconds"]))
        timing = run(served, limits, prompt, output, poisson(rate, count, point["seed"]))
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

    return search(point["request_rates"], measure, point.get("refine_steps", 0))


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
