"""Measures one serving point with vLLM."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="measure",
    output="serving/{point}/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.measure.run:measure_point",
    gpus="serve",
)
