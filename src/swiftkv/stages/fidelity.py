"""Compares a variant to its teacher."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="fidelity",
    output="fidelity/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.score.fidelity:measure_fidelity",
    gpus="score",
)
