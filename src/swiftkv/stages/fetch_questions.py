"""Fetches the questions of a task that come from the hub."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="fetch_questions",
    output="questions/{task}",
    run="swiftkv.score.fetch:fetch_questions",
    online=True,
)
