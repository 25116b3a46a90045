"""Measures the similarity of layer inputs."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage


def seconds(work: Work) -> float:
    """The teacher over some chats, and the products of pairs of layers."""
    settings, size = work.config.similarity, work.size
    context = work.chat_tokens(settings.data, settings.max_length)
    pairs = 2 * size.layers**2 * size.width / work.machine["float32"]
    flops = settings.documents * context * (size.layers * size.layer(context) + pairs)
    return work.run(work.machine.compute(flops, "forward", work.machine.alone))


STAGE = Stage(
    name="similarity",
    output="similarity/{model}.json",
    run="swiftkv.score.similarity:measure_similarity",
    gpus="score",
    seconds=seconds,
)
