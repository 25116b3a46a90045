"""Measures early exit."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage


def seconds(work: Work) -> float:
    """Agreement on chats, and every answer twice, one sequence at a time."""
    settings, size = work.config.early_exit, work.size
    context = work.heldout_tokens(settings.max_length)
    flops = settings.documents * context * (size.layers * size.layer(context) + 2 * size.head)
    prompts = settings.prompts + len(settings.questions) + 1  # one to warm up
    steps = 2 * prompts * settings.max_new_tokens  # as if no answer ended before
    decoding = work.machine.decode(steps, size.bytes, size.layers)
    return work.run(work.machine.compute(flops, "comparing", work.machine.alone) + decoding)


STAGE = Stage(
    name="early_exit",
    output="early_exit/{model}/{variant}.json",
    run="swiftkv.score.early_exit:measure_early_exit",
    gpus="score",
    seconds=seconds,
)
