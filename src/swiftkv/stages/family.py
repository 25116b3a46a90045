"""Measures SwiftKV for every l, and what its neighbors without training leave of a model's quality."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage

PASSES = 1  # of every l: the lower half, and the answers alone above it, eight times


def seconds(work: Work) -> float:
    """The teacher, trained variants and smaller models, and every member for every l, over the held-out chats."""
    settings, size = work.config.family, work.size
    context = work.heldout_tokens(settings.max_length)
    settled = len(work.config.family_variants) + len(work.config.models[work["model"]].siblings)
    starts = [work.config.candidate_layers(work["model"], whose) for whose in ("variants", "family")]
    passes = 1 + settled + PASSES * sum(map(len, starts))
    flops = settings.documents * context * passes * (size.layers * size.layer(context) + size.head)
    return work.run(work.machine.compute(flops, "comparing", work.machine.alone))


STAGE = Stage(
    name="family",
    output="family/{model}.json",
    run="swiftkv.score.family:measure_family",
    gpus="score",
    seconds=seconds,
)
