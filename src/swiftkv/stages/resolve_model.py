"""Makes a model available as a plain checkpoint."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="resolve_model",
    output="models/{model}/source.json",
    run="swiftkv.sources:write_source",
    online=True,
)
