"""Seconds of the jobs that train, and of those that run the teacher for them."""

from __future__ import annotations

import math
from typing import Any

from swiftkv import config as cfg
from swiftkv.distill.recipe import PAUSE, Recipe
from swiftkv.planning.machine import Machine
from swiftkv.planning.size import Size
from swiftkv.planning.text import chat_tokens, packed_rows, trained_tokens
from swiftkv.spec import SwiftKVSpec


def training_flops(size: Size, spec: SwiftKVSpec | None, recipe: Recipe, context: float) -> float:
    """FLOPs of one token of a training, forward and backward; optimizer, norms and softmax left out.

    A backward pass through frozen weights costs as much as the forward pass, through trained ones twice as much.

    Args:
        spec: the rewiring; None for a model that is trained as it is.
        context: mean tokens of the samples in a row, each of which attends to itself.
    """
    layer, head, depth = size.layer(context), size.head, size.layers
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


def distill(
    config: dict[str, Any],
    size: Size,
    spec: SwiftKVSpec | None,
    recipe: Recipe,
    packed: str | None,
    machine: Machine,
) -> float:
    """Seconds of one training, start and saving included."""
    tokens = trained_tokens(config, recipe, packed)
    flops = tokens * training_flops(size, spec, recipe, chat_tokens(config, recipe.data, recipe.max_length))
    seconds = machine.compute(flops, "training", machine.together)
    state = machine.load(size.state_bytes(spec, recipe.train))
    states = 1 + math.floor(seconds / max(60 * recipe.checkpoint_minutes, PAUSE * state))
    return machine["start"] + machine["trainer"] + 2 * machine.load(size.bytes) + seconds + states * state


def moments_flops(size: Size, layers: list[int]) -> float:
    """FLOPs of one token's second moments (`swiftkv.start.moments`), in float32."""
    pairs = sum(size.layers - layer for layer in layers)
    return 2 * size.width * (pairs * size.keys_and_values + 2 * len(layers) * size.width)


def teacher(
    config: dict[str, Any],
    model: str,
    size: Size,
    recipe: Recipe,
    packed: str | None,
    machine: Machine,
    *,
    stored: bool,
) -> float:
    """Seconds of the teacher over the training rows, or where its states are not stored over those of a fit."""
    rows = packed_rows(config, recipe, packed) * recipe.max_length
    fitted = min(rows, recipe.start_tokens)
    context = chat_tokens(config, recipe.data, recipe.max_length)
    forward = (rows if stored else fitted) * size.layers * size.layer(context)
    moments = fitted * moments_flops(size, cfg.candidate_layers(config, model)) / machine["float32"]
    seconds = machine.compute(forward + moments, "forward", machine.alone)
    return machine["start"] + machine.load(size.bytes) + seconds
