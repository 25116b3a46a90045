"""Stores the teacher's hidden states on the training rows, and its moments."""

from swiftkv.stages.stage import Stage

STAGE = Stage(
    name="teacher_states",
    output="teacher/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_teacher_states",
    more=("moments/{model}/{recipe}.safetensors",),
    gpus="score",
)
