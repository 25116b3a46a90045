"""Compares a variant to its teacher on chats that no table scores."""

from swiftkv.stages import fidelity
from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="unscored",
    output="unscored/{model}/{variant}/{kv_cache}.json",
    run=fidelity.STAGE.run,
    gpus="score",
    seconds=fidelity.seconds,
)
