"""Scores a variant on a part of a benchmark's questions."""

from swiftkv.stages import score
from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="score_shard",
    output="score-shards/{model}/{variant}/{kv_cache}/{task}/{shard}-of-{shards}.json",
    run="swiftkv.score.run:measure_scores",
    gpus="score",
    seconds=score.seconds,
)
