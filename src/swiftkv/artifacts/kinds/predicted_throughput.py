"""Figure 3 as the model of time predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swiftkv.artifacts.drawing import Drawing
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.kinds import throughput
from swiftkv.artifacts.predicted import Point, Result, extra, notes, read_predicted
from swiftkv.cost import parameter_count, request_flops
from swiftkv.predict.engine import Limits, all_at_once
from swiftkv.predict.step import Served


def make(entry: Entry, files: Files) -> Drawing:
    """The bars of `throughput`, hatched; its CSV says "predicted" in the column `row`."""
    entry = {**entry, "notes": notes(entry)}
    return throughput.draw(read_predicted(entry, files, "throughput", numbers, waiting), files)


def waiting(point: Point) -> int:
    """Requests of a point, all sent at once."""
    return max(1, round(point["total_tokens"] / (point["input_tokens"] + point["output_tokens"])))


def numbers(served: Served, limits: Limits, point: Point, config: Mapping[str, Any]) -> Result | None:
    """What a measurement of the point would give; None where one request does not fit."""
    prompt, output, count = point["input_tokens"], point["output_tokens"], waiting(point)
    seconds = all_at_once(served, limits, prompt, output, count)
    if seconds is None:
        return None
    rate = count * (prompt + output) / seconds
    each = rate / served.devices if served.device.memory else rate  # cores of a processor are one device
    flops = sum(request_flops(served.arch, None, prompt, output).values()) / (prompt + output)
    normalized = each * 2 * parameter_count(config) / 1e12
    return {
        "tokens_per_second": rate,
        "seconds": seconds,
        "normalized_tflops_per_gpu": normalized,
        "exact_tflops_per_gpu": each * flops / 1e12,
        "mfu_percent": 100e12 * normalized / served.device.flops if served.device.memory else None,
    }


KIND = ArtifactKind("figure", ("models", "variants", "points"), ("dimensions", "devices"), make, extra=extra)
