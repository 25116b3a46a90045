"""Writes a checkpoint folder without weights."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="dummy_checkpoint",
    output="dummy/{model}/{variant}",
    run="swiftkv.measure.dummy:dummy_checkpoint",
    online=True,
)
