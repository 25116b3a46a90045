"""Measures quality before training for every l."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="starts",
    output="starts/{model}.json",
    run="swiftkv.score.starts:measure_starts",
    gpus="score",
)
