"""Stores the teacher's hidden states on the training rows."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage


def teacher(work: Work, tokens: float) -> float:
    """FLOPs of the teacher's layers over some training tokens."""
    return tokens * work.size.layers * work.size.layer(work.chat_tokens(work.recipe.data, work.recipe.max_length))


def seconds(work: Work) -> float:
    """The teacher over all training rows."""
    return work.run(work.machine.compute(teacher(work, work.packed_tokens), "forward", work.machine.alone))


def written(work: Work) -> dict[str, float]:
    """Two bytes a width, token and stored layer."""
    recipes = [name for name, recipe in work.config.recipes.items() if recipe.data == work.recipe.data]
    stored = 1 + len(work.config.stored_layers(work["model"], recipes))
    return {"teacher states": 2 * work.packed_tokens * work.size.width * stored}


STAGE = Stage(
    name="teacher_states",
    output="teacher/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_teacher_states",
    gpus="score",
    seconds=seconds,
    written=written,
)
