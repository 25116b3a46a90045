"""Compares a variant to its teacher."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage


def seconds(work: Work) -> float:
    """Comparing a variant with its teacher on the held-out chats."""
    settings, size, variant = work.config.fidelity, work.size, work.variant
    context = work.heldout_tokens(settings.max_length)
    passes = heads = 1.0 + (variant.changed or work["kv_cache"] != "auto")
    if work.spec is not None and work["kv_cache"] == "auto":
        # Below layer l once, above it teacher, trained and start; with layers of its own below, nothing is shared.
        below = work.spec.num_key_value_layers / size.layers
        passes, heads = below + 3 * (1 - below), 3.0
    flops = settings.documents * context * (passes * size.layers * size.layer(context) + heads * size.head)
    comparing = work.machine.compute(flops, "comparing", work.machine.alone)
    return work.run(comparing + (work.machine.load(size.bytes) if variant.changed else 0))


STAGE = Stage(
    name="fidelity",
    output="fidelity/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.score.fidelity:measure_fidelity",
    gpus="score",
    seconds=seconds,
)
