"""Gathers what a fitted start needs, where teacher states are not stored."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="moments",
    output="moments/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_moments",
    gpus="score",
)
