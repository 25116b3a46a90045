"""Figure 3 as the model of time predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swiftkv.artifacts.drawing import Drawing
from swiftkv.artifacts.kind import ArtifactKind, Entry, Files
from swiftkv.artifacts.kinds import throughput
from swiftkv.artifacts.predicted import extra, read_predicted
from swiftkv.measure.kind import Numbers, requested
from swiftkv.measure.point import Point
from swiftkv.measure.throughput import number_of_prompts, throughput_result
from swiftkv.points import Throughput
from swiftkv.predict.device import TERA
from swiftkv.predict.engine import Limits, all_at_once
from swiftkv.predict.step import Served


def make(entry: Entry, files: Files) -> Drawing:
    """The bars of `throughput`, hatched; its CSV says "predicted" in the column `row`."""
    return throughput.draw(read_predicted(entry, files, "throughput", numbers), files)


def numbers(served: Served, limits: Limits, point: Point[Throughput], config: Mapping[str, Any]) -> Numbers | None:
    """What a measurement of the point would give; None where one request does not fit."""
    seconds = all_at_once(served, limits, *requested(point), number_of_prompts(point))
    peak = served.peak_flops / TERA if point.gpus else None
    return None if seconds is None else throughput_result(point, config, seconds, peak)


KIND = ArtifactKind("figure", ("models", "variants", "points"), ("dimensions", "devices"), make, extra=extra)
