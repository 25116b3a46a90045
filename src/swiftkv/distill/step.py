"""The loss of one micro-batch: layers < l once, then the teacher's and the student's layers >= l on their output.

Steps return the loss and its detached parts, float32 [3]: the losses of logits, hidden states and early exit head, without
the recipe's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from swiftkv.distill import attention, losses
from swiftkv.distill.recipe import ForwardSettings, Recipe
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec


class Step(nn.Module):
    """A trained model with its attention function and head."""

    def __init__(self, student: PreTrainedModel, recipe: Recipe, *frozen: PreTrainedModel) -> None:
        """Take a model whose trained parameters are marked, and `frozen` models that run with the same attention."""
        super().__init__()
        self.recipe, self.student = recipe, student
        self.head = Head(student.lm_head.weight)
        self.attention = use_attention(recipe, student, *frozen)
        if recipe.checkpoint_activations:
            student.gradient_checkpointing_enable({"use_reentrant": False})

    def set_mode(self) -> None:
        """Switch the student to training mode if its activations are checkpointed, which transformers does in that mode only."""
        self.student.train(self.recipe.checkpoint_activations and torch.is_grad_enabled())


class DistillationStep(Step):
    """Student and teacher on one copy of the frozen weights; `forward` computes the loss.

    With train "qkv" both are the same module; with "upper_layers" the student has its own copies of layers >= l. With
    own_key_values only the keys and values of prompts are trained.
    """

    def __init__(
        self, base: PreTrainedModel, spec: SwiftKVSpec, recipe: Recipe, start: dict[str, nn.Parameter] | None = None
    ) -> None:
        """Rewire `base` with the start values, by default `start_values`, and mark the trained parameters.

        Raises:
            UserError: `spec` does not fit the model, or no hidden states are left to compare.
        """
        student = rewire(base, spec, start).eval().requires_grad_(False)
        trained = student.swiftkv_parameters()
        if not recipe.train_norm:
            del trained["model.norm_swiftkv.weight"]
        for parameter in trained.values():
            parameter.requires_grad_(True)
        teacher = student
        if recipe.train == "upper_layers":
            teacher = rewire(base, replace(spec, early_exit=False)).eval().requires_grad_(False)
            # The student's own copies of what it shares with the teacher.
            for module in student.model.upper_layers.modules():
                for name, parameter in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(parameter.detach().clone()))
            for name in student.teacher_projection_names():
                student.get_parameter(name).requires_grad_(False)
        super().__init__(student, recipe, teacher)
        self.teacher = teacher
        self.early_exit_head = None
        if spec.early_exit:
            teacher_head = student.lm_head.weight if recipe.loss == "distillation" else None
            self.early_exit_head = Head(student.early_exit_head_swiftkv.weight, teacher_head)
        self.compared_state = recipe.compared_state(spec)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        weights: torch.Tensor,
        lower_hidden: torch.Tensor | None = None,
        teacher_hidden: torch.Tensor | None = None,
        teacher_compared: torch.Tensor | None = None,
        assistant_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss of packed rows, a float32 scalar, and its parts.

        Args:
            input_ids: int64 [B, T].
            position_ids: int64 [B, T], restarting at every sample.
            weights: weight of each position in the loss, float32 [B, T].
            lower_hidden: stored residual stream entering layer l [B, T, D]; None computes it.
            teacher_hidden: stored final normed hidden states of the teacher [B, T, D]; None computes them.
            teacher_compared: stored hidden states that the recipe compares [B, T, D], with `teacher_hidden`.
            assistant_mask: [B, T], 1 = the assistant's token; for recipes that count only these.
        """
        recipe, decoder = self.recipe, self.student.model
        collect = self.compared_state is not None
        with torch.no_grad():
            arguments = attention.arguments(self.attention, position_ids)
            if lower_hidden is None:
                state = decoder.forward_lower(input_ids, position_ids, **arguments)
            else:
                state = decoder.state(lower_hidden, position_ids, **arguments)
            if recipe.loss == "distillation" and teacher_hidden is None:
                teacher_hidden, inner = self.teacher.model.forward_upper(state, student=False, collect_hidden=collect)
                if collect:
                    teacher_compared = self._compared(inner, teacher_hidden)
        self.set_mode()
        flat_weights = counted = weights.flatten()
        if assistant_mask is not None:
            answering = before(assistant_mask, position_ids)
            unshifted = recipe.logits_tokens == "assistant_unshifted"
            counted = flat_weights * (assistant_mask.flatten() if unshifted else answering)
            if decoder.spec.own_key_values:
                state.full_depth = assistant_mask.bool() | answering.view_as(assistant_mask).bool()
                flat_weights = counted
        hidden, inner = decoder.forward_upper(state, student=True, collect_hidden=collect)
        if recipe.loss == "lm":
            targets, has_target = next_tokens(input_ids, position_ids)
            task = (losses.lm_loss, counted * has_target, targets)
        else:
            task = (losses.distillation_loss, counted, teacher_hidden.flatten(0, 1), recipe.temperature)
        logits_loss = self.head(hidden.flatten(0, 1), *task)
        hidden_loss = early_exit_loss = torch.zeros_like(logits_loss)
        if self.early_exit_head is not None:
            early_exit_loss = self.early_exit_head(decoder.norm_swiftkv(state.hidden).flatten(0, 1), *task)
        if collect:
            pair = (self._compared(inner, hidden), teacher_compared)
            hidden_loss = losses.hidden_state_loss(*(states.flatten(0, 1) for states in pair), flat_weights)
        # The paper sums the losses of both heads directly (Appendix E).
        loss = recipe.logits_weight * (logits_loss + early_exit_loss) + recipe.hidden_state_weight * hidden_loss
        return loss, torch.stack([logits_loss, hidden_loss, early_exit_loss]).detach()

    def _compared(self, inner: tuple[torch.Tensor, ...], final: torch.Tensor) -> torch.Tensor:
        """Pick the hidden states that the recipe compares."""
        return (*inner, final)[self.compared_state - self.student.spec.num_key_value_layers]


class FineTuningStep(Step):
    """A model as it is, all of it trained on the next tokens of its samples (Appendix D.1)."""

    def __init__(self, model: PreTrainedModel, recipe: Recipe) -> None:
        super().__init__(model.eval().requires_grad_(True), recipe)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        weights: torch.Tensor,
        assistant_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `DistillationStep.forward`."""
        self.set_mode()
        arguments = attention.arguments(self.attention, position_ids)
        arguments.pop("attention_mask", None)  # an ordinary model leaves its mask out by itself
        hidden = self.student.model(input_ids, position_ids=position_ids, use_cache=False, **arguments)[0]
        targets, has_target = next_tokens(input_ids, position_ids)
        counted = weights.flatten() * has_target
        if assistant_mask is not None:
            counted = counted * before(assistant_mask, position_ids)
        loss = self.head(hidden.flatten(0, 1), losses.lm_loss, counted, targets)
        return self.recipe.logits_weight * loss, torch.stack([loss, *[torch.zeros_like(loss)] * 2]).detach()


def use_attention(recipe: ForwardSettings, *models: PreTrainedModel) -> str:
    """Switch the models to the attention function that fits recipe and machine; its name."""
    name = attention.choose_kernel(recipe, getattr(models[0].config, "sliding_window", None))
    for model in models:
        model.set_attn_implementation(name)
    return name


class Head(nn.Module):
    """Applies a loss with a language-model head's weight; a module so that ZeRO-3 gathers the weight."""

    def __init__(self, weight: nn.Parameter, teacher: nn.Parameter | None = None) -> None:
        """`teacher` is the weight of the teacher's head if it is another one."""
        super().__init__()
        self.weight, self.teacher = weight, teacher

    def forward(self, hidden: torch.Tensor, loss: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        """Return `loss(hidden, weight, *arguments)`, with the teacher's weight as last argument if there is one."""
        teacher = () if self.teacher is None else (self.teacher,)
        return loss(hidden, self.weight, *arguments, *teacher)


def next_tokens(input_ids: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each position's next token in its sample, int64 [B * T], and 1.0 where there is one, float32 [B * T]."""
    return pad(input_ids[:, 1:], (0, 1)).flatten(), before(torch.ones_like(input_ids), position_ids)


def before(mask: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """Return 1.0 where the next token of the position's sample is in `mask` [B, T], float32 [B * T]."""
    return pad(mask[:, 1:].float() * (position_ids[:, 1:] != 0), (0, 1)).flatten()
