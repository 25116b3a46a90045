"""Gathers the training chats of one data mix."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="corpus",
    output="data/{data}/train.jsonl",
    run="swiftkv.data.build:build_corpus",
    more=("data/{data}/source.json",),
    online=True,
)
