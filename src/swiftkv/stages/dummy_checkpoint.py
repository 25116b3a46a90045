"""Writes a checkpoint folder without weights."""

from __future__ import annotations

from swiftkv.pricing.size import TOKENIZER_BYTES
from swiftkv.pricing.work import Download, Work, download
from swiftkv.sources import TOKENIZER_FILES
from swiftkv.stages.stage import Stage


def downloads(work: Work) -> list[Download]:
    """The model's tokenizer."""
    return download("tokenizer", work.model.source, TOKENIZER_FILES, TOKENIZER_BYTES)


STAGE = Stage(
    name="dummy_checkpoint",
    output="dummy/{model}/{variant}",
    run="swiftkv.measure.dummy:dummy_checkpoint",
    online=True,
    downloads=downloads,
    written=lambda work: {"other": TOKENIZER_BYTES},
)
