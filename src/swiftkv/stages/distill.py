"""Trains a variant."""

from __future__ import annotations

import math

from swiftkv.distill.recipe import PAUSE
from swiftkv.pricing.training import Memory, training_memory
from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage

STATES = 3  # training states at once: `swiftkv.distill.state.KEPT` that stay, and one that is being written


def token_flops(work: Work) -> float:
    """FLOPs of one token of the training, forward and backward; optimizer, norms and softmax left out.

    A backward pass through frozen weights costs as much as the forward pass, through trained ones twice as much.
    """
    size, spec, recipe = work.size, work.spec, work.recipe
    head, depth = size.head, size.layers
    layer = size.layer(work.chat_tokens(recipe.data, recipe.max_length))
    if spec is None:
        return 3 * (depth * layer + head) + (depth * layer if recipe.checkpoint_activations else 0)
    upper = depth - spec.num_key_value_layers
    taught = recipe.loss == "distillation"
    flops = 2 * upper * layer  # the student, there and back
    flops += 2 * size.trained(spec, recipe.train)  # gradients of what is trained
    flops += upper * layer if recipe.checkpoint_activations else 0
    heads = 2 + taught  # the student's logits, their gradient for the hidden states, and the teacher's logits
    flops += heads * head * (2 if spec.early_exit else 1)
    if not (taught and recipe.teacher_states == "stored"):
        flops += spec.num_key_value_layers * layer + (upper * layer if taught else 0)
    return flops


def seconds(work: Work) -> float:
    """One training, start and saving included."""
    recipe, machine, size = work.recipe, work.machine, work.size
    tokens = recipe.total_steps(work.packed_rows) * recipe.batch_size * recipe.max_length
    training = machine.compute(tokens * token_flops(work), "training", machine.together)
    saving = machine.load(size.state_bytes(work.spec, recipe.train))
    states = 1 + math.floor(training / max(60 * recipe.checkpoint_minutes, PAUSE * saving))
    return work.run(machine["trainer"] + machine.load(size.bytes) + training + states * saving)


def memory(work: Work) -> Memory:
    """Of one of its GPUs."""
    return training_memory(work.size, work.spec, work.recipe, work.job.gpus)


def written(work: Work) -> dict[str, float]:
    """The checkpoint, and the states that a training goes on from."""
    state = work.size.state_bytes(work.spec, work.recipe.train)
    return {"checkpoints": work.size.checkpoint_bytes(work.spec), "training state": STATES * state}


STAGE = Stage(
    name="distill",
    output="training/{model}/{variant}.json",
    run="swiftkv.distill.trainer:train",
    more=("training/{model}/{variant}.csv", "checkpoints/{model}/{variant}"),
    gpus="distill",
    seconds=seconds,
    memory=memory,
    written=written,
)
