"""Fits starts to the teacher's keys and values, for every l of the variants or for those that the family has between."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage
from swiftkv.stages.teacher_states import teacher
from swiftkv.start.rounds import rounds


def seconds(work: Work) -> float:
    """The teacher over the tokens that a start is fitted to, once for each round of sums, and the sums in float32.

    Each pair of an l and a layer above has sums of its own, because each layer weighs tokens in its own way.
    """
    size, candidates = work.size, work.config.candidate_layers(work["model"], work["whose"])
    pairs = sum(size.layers - layer for layer in candidates)
    moments = 2 * size.width * (pairs * (size.keys_and_values + size.width) + 2 * len(candidates) * size.width)
    tokens, passes = min(work.packed_tokens, work.recipe.start_tokens), len(rounds(candidates, size.layers, size.width))
    flops = teacher(work, passes * tokens) + tokens * moments / work.machine["float32"]
    return work.run(work.machine.compute(flops, "forward", work.machine.alone))


def written(work: Work) -> dict[str, float]:
    """The fits in float32, and the covariances in float64."""
    size, candidates = work.size, work.config.candidate_layers(work["model"], work["whose"])
    pairs = sum(size.layers - layer for layer in candidates)
    return {"moments": size.width * (4 * pairs * size.keys_and_values + 12 * len(candidates) * size.width)}


STAGE = Stage(
    name="moments",
    output="moments/{model}/{recipe}/{whose}.safetensors",
    run="swiftkv.distill.teacher:write_moments",
    gpus="score",
    seconds=seconds,
    written=written,
)
