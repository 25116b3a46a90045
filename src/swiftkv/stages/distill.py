"""Trains a variant."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="distill",
    output="training/{model}/{variant}.json",
    run="swiftkv.distill.trainer:train",
    more=("training/{model}/{variant}.csv", "checkpoints/{model}/{variant}"),
    gpus="distill",
)
