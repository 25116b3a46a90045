"""Gathers what a fitted start needs, where teacher states are not stored."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage
from swiftkv.start.rounds import rounds


def fitted_tokens(work: Work) -> int:
    """Tokens that a start is fitted to."""
    return min(work.packed_tokens, work.recipe.start_tokens)


def teacher(work: Work, tokens: float) -> float:
    """Seconds of the teacher over some tokens, and of the sums over those that a start is fitted to, in float32.

    Each pair of an l and a layer above has sums of its own, because each layer weighs tokens in its own way.
    """
    size, candidates = work.size, work.config.candidate_layers(work["model"], work["recipe"])
    pairs = sum(size.layers - layer for layer in candidates)
    moments = 2 * size.width * (pairs * (size.keys_and_values + size.width) + 2 * len(candidates) * size.width)
    context = work.chat_tokens(work.recipe.data, work.recipe.max_length)
    flops = tokens * size.layers * size.layer(context) + fitted_tokens(work) * moments / work.machine["float32"]
    return work.run(work.machine.compute(flops, "forward", work.machine.alone))


def passes(work: Work) -> int:
    """How often the stage runs the teacher over them."""
    return len(rounds(work.config.candidate_layers(work["model"], work["recipe"]), work.size.layers, work.size.width))


def written(work: Work) -> dict[str, float]:
    """The fits in float32, and the covariances in float64."""
    size, candidates = work.size, work.config.candidate_layers(work["model"], work["recipe"])
    pairs = sum(size.layers - layer for layer in candidates)
    return {"moments": size.width * (4 * pairs * size.keys_and_values + 12 * len(candidates) * size.width)}


STAGE = Stage(
    name="moments",
    output="moments/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_moments",
    gpus="score",
    seconds=lambda work: teacher(work, passes(work) * fitted_tokens(work)),
    written=written,
)
