"""Compares a model whose KV cache drops tokens to itself."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage

STEP = 1e-4  # assumed: seconds in which a layer chooses which token to drop for one more token


def seconds(work: Work) -> float:
    """The model as it is and once for every policy and share; by attention received, a token at a time."""
    settings, size, shares = work.config.fidelity, work.size, len(work.config.eviction.shares)
    tokens = settings.documents * work.heldout_tokens(settings.max_length)
    flops = tokens * (1 + 2 * shares) * (size.layers * size.layer(tokens / settings.documents) + size.head)
    steps = tokens * size.layers * shares * STEP
    return work.run(work.machine.compute(flops, "comparing", work.machine.alone) + steps)


STAGE = Stage(
    name="eviction",
    output="eviction/{model}.json",
    run="swiftkv.score.eviction:measure_eviction",
    gpus="score",
    seconds=seconds,
)
