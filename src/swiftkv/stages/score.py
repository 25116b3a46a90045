"""Scores a variant on benchmarks."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="score",
    output="scores/{model}/{variant}/{kv_cache}/{task}.json",
    run="swiftkv.score.run:measure_scores",
    gpus="score",
)
