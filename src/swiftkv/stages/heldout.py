"""Sets aside the chats that everything is measured on."""

from __future__ import annotations

from swiftkv.pricing.size import TEXT_BYTES
from swiftkv.pricing.work import Download, Work, download
from swiftkv.stages.stage import Stage

CHAT_TOKENS = 1000  # assumed of a held-out chat, for its room


def downloads(work: Work) -> list[Download]:
    """The sources of the mix that chats are set aside from."""
    mix = work.config.data[work.config.heldout.data]
    return [item for source in mix.sources for item in download("data set", source)]


STAGE = Stage(
    name="heldout",
    output="data/heldout.jsonl",
    run="swiftkv.data.build:draw_heldout",
    more=("data/heldout.json",),
    online=True,
    seconds=lambda work: work.start(work.mix_tokens(work.config.heldout.data), "read_tokens"),
    downloads=downloads,
    written=lambda work: {"data": work.config.heldout.chats * CHAT_TOKENS * TEXT_BYTES},
)
