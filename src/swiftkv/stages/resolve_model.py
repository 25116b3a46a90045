"""Makes a model available as a plain checkpoint."""

from __future__ import annotations

from swiftkv.config.sources import HubModel, PackagedModel
from swiftkv.pricing.size import TOKENIZER_BYTES
from swiftkv.pricing.work import Download, Work, download, if_known
from swiftkv.sources import MODEL_FILES, TOKENIZER_FILES
from swiftkv.stages.stage import Stage, small


def seconds(work: Work) -> float:
    """A download, or the conversion of a packaged model."""
    if isinstance(work.model.source, PackagedModel):
        return work.fetch(work.size.bytes, "convert_gb")
    return work.fetch(work.size.bytes) if isinstance(work.model.source, HubModel) else work.start()


def downloads(work: Work) -> list[Download]:
    """The model, and the tokenizer whose chat template it uses."""
    return [
        *download("model", work.model.source, MODEL_FILES, if_known(lambda: work.size.bytes)),
        *download("tokenizer", work.model.chat_template, TOKENIZER_FILES, TOKENIZER_BYTES),
    ]


def written(work: Work) -> dict[str, float]:
    """A packaged model is written; one of the hub stays in the hub's cache."""
    return {"models": work.size.bytes} if isinstance(work.model.source, PackagedModel) else small(work)


STAGE = Stage(
    name="resolve_model",
    output="models/{model}/source.json",
    run="swiftkv.sources:write_source",
    online=True,
    seconds=seconds,
    downloads=downloads,
    written=written,
)
