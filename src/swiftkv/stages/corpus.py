"""Gathers the training chats of one data mix."""

from __future__ import annotations

from swiftkv.pricing.size import TEXT_BYTES
from swiftkv.pricing.work import Download, Work, download
from swiftkv.stages.stage import Stage


def downloads(work: Work) -> list[Download]:
    """The mix's sources."""
    return [item for source in work.config.data[work["data"]].sources for item in download("data set", source)]


STAGE = Stage(
    name="corpus",
    output="data/{data}/train.jsonl",
    run="swiftkv.data.build:build_corpus",
    more=("data/{data}/source.json",),
    online=True,
    seconds=lambda work: work.start(work.mix_tokens(work["data"]), "read_tokens"),
    downloads=downloads,
    written=lambda work: {"data": work.mix_tokens(work["data"]) * TEXT_BYTES},
)
