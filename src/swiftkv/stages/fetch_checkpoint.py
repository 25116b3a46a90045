"""Makes a SwiftKV checkpoint that others trained available."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="fetch_checkpoint",
    output="checkpoints/{model}/{variant}",
    run="swiftkv.published:fetch_checkpoint",
    online=True,
)
