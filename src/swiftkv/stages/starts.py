"""Measures quality before training for every l."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage


def seconds(work: Work) -> float:
    """The teacher, and both starts for every l, over the held-out chats."""
    settings, size = work.config.choose_l, work.size
    context = work.heldout_tokens(settings.max_length)
    passes = 1 + 2 * len(work.config.candidate_layers(work["model"]))
    flops = settings.documents * context * passes * (size.layers * size.layer(context) + size.head)
    return work.run(work.machine.compute(flops, "comparing", work.machine.alone))


STAGE = Stage(
    name="starts",
    output="starts/{model}.json",
    run="swiftkv.score.starts:measure_starts",
    gpus="score",
    seconds=seconds,
)
