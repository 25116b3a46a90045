"""Fits starts to the teacher's keys and values, for every l of the variants."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage
from swiftkv.stages.teacher_states import teacher


def seconds(work: Work) -> float:
    """The teacher over the tokens that a start is fitted to, and the sums in float32.

    Each pair of an l and a layer above has sums of its own, because each layer weighs tokens in its own way.
    """
    size, candidates = work.size, work.model.layers_below
    pairs = sum(size.layers - layer for layer in candidates)
    moments = 2 * size.width * (pairs * (size.keys_and_values + size.width) + 2 * len(candidates) * size.width)
    tokens = min(work.packed_tokens, work.recipe.start_tokens)
    flops = teacher(work, tokens) + tokens * moments / work.machine["float32"]
    return work.run(work.machine.compute(flops, "forward", work.machine.alone))


def written(work: Work) -> dict[str, float]:
    """The fits in float32, and the covariances in float64."""
    size, candidates = work.size, work.model.layers_below
    pairs = sum(size.layers - layer for layer in candidates)
    return {"moments": size.width * (4 * pairs * size.keys_and_values + 12 * len(candidates) * size.width)}


STAGE = Stage(
    name="moments",
    output="moments/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_moments",
    gpus="score",
    seconds=seconds,
    written=written,
)
