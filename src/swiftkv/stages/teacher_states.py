"""Stores the teacher's hidden states on the training rows, and its moments."""

from __future__ import annotations

from swiftkv.pricing.work import Work
from swiftkv.stages import moments
from swiftkv.stages.stage import Stage


def seconds(work: Work) -> float:
    """The teacher over all training rows, and the moments of a part of them."""
    return moments.teacher(work, work.packed_tokens)


def written(work: Work) -> dict[str, float]:
    """Two bytes a width, token and stored layer, and the moments."""
    recipes = [name for name, recipe in work.config.recipes.items() if recipe.data == work.recipe.data]
    stored = 1 + len(work.config.stored_layers(work["model"], recipes))
    return {"teacher states": 2 * work.packed_tokens * work.size.width * stored} | moments.written(work)


STAGE = Stage(
    name="teacher_states",
    output="teacher/{model}/{recipe}.safetensors",
    run="swiftkv.distill.teacher:write_teacher_states",
    more=("moments/{model}/{recipe}.safetensors",),
    gpus="score",
    seconds=seconds,
    written=written,
)
