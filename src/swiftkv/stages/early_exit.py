"""Measures early exit."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="early_exit",
    output="early_exit/{model}/{variant}.json",
    run="swiftkv.score.early_exit:measure_early_exit",
    gpus="score",
)
