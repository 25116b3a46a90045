"""Sets aside the chats that everything is measured on."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="heldout",
    output="data/heldout.jsonl",
    run="swiftkv.data.build:draw_heldout",
    more=("data/heldout.json",),
    online=True,
)
