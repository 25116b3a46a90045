"""Makes a SwiftKV checkpoint that others trained available."""

from __future__ import annotations

from swiftkv.pricing.work import Download, Work, download, if_known
from swiftkv.sources import MODEL_FILES
from swiftkv.stages.stage import Stage


def size(work: Work) -> int:
    """Bytes of the checkpoint."""
    return work.size.checkpoint_bytes(work.spec)


def downloads(work: Work) -> list[Download]:
    """The published checkpoint."""
    source = work.model.checkpoints[work["variant"]]
    return download("checkpoint", source, MODEL_FILES, if_known(lambda: size(work)))


STAGE = Stage(
    name="fetch_checkpoint",
    output="checkpoints/{model}/{variant}",
    run="swiftkv.published:fetch_checkpoint",
    online=True,
    seconds=lambda work: work.fetch(size(work)),
    downloads=downloads,
)
