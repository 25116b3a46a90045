"""Makes one score of its shards."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="merge_scores",
    output="scores/{model}/{variant}/{kv_cache}/{task}.json",
    run="swiftkv.score.shards:merge_scores",
    local=True,
    seconds=lambda work: work.host("artifact"),
)
