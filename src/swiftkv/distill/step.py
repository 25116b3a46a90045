"""The loss of one micro-batch: layers below l once, then the teacher's and the student's upper layers on that state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from swiftkv.distill import attention, losses
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.models import LowerState, rewire
from swiftkv.spec import SwiftKVSpec

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass
class StepLosses:
    """Weighted sums over the positions of a micro-batch, without the recipe's weights; detached float32 scalars."""

    logits: torch.Tensor
    hidden: torch.Tensor


class DistillationStep(nn.Module):
    """Student and teacher around one copy of the frozen weights; its forward is the loss.

    With train "qkv" both are the same module. With "upper_layers" the student's layers >= l are copies of their own,
    because the teacher must stay what it was.
    """

    def __init__(self, base: PreTrainedModel, spec: SwiftKVSpec, recipe: Recipe) -> None:
        """Rewire `base` and mark what is trained.

        Raises:
            UserError: `spec` does not fit the model or leaves nothing to train, or the recipe's hidden state is not
                one of the upper layers'.
        """
        super().__init__()
        if spec.num_key_value_layers == spec.num_hidden_layers:
            raise UserError("the SwiftKV spec rewires no layer, so there is nothing to train")
        self.recipe = recipe
        self.student = rewire(base, spec).eval()
        self.student.requires_grad_(False)
        trained = self.student.swiftkv_parameters()
        self.teacher = self.student
        if recipe.train == "upper_layers":
            self.teacher = rewire(base, spec).eval().requires_grad_(False)
            own_upper_layers(self.student)
            start = spec.num_key_value_layers
            unused = self.student.model.teacher_projection_names(prefix="model.")
            for index in range(start, spec.num_hidden_layers):
                prefix = f"model.layers.{index}."
                layer = self.student.model.layers[index].named_parameters(prefix=prefix[:-1])
                trained |= {name: parameter for name, parameter in layer if name not in unused}
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self.trained_names = sorted(trained)
        self.head = Head(self.student.lm_head.weight)
        self.hidden_index = None
        if recipe.hidden_state_weight:
            layers = spec.num_hidden_layers
            index = recipe.hidden_state_layer + (layers + 1 if recipe.hidden_state_layer < 0 else 0)
            if not spec.num_key_value_layers < index <= layers:
                raise UserError(
                    f"recipe: hidden_state_layer {recipe.hidden_state_layer} is not above layer l = "
                    f"{spec.num_key_value_layers}, so teacher and student do not differ there"
                )
            self.hidden_index = index - spec.num_key_value_layers
        self.packed_attention = attention.applies(self.student, recipe.max_length)
        if self.packed_attention:
            for model in {self.student, self.teacher}:
                model.set_attn_implementation(attention.NAME)
        if recipe.checkpoint_activations:
            self.student.gradient_checkpointing_enable({"use_reentrant": False})
        self.last: StepLosses | None = None

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        weights: torch.Tensor,
        lower_hidden: torch.Tensor | None = None,
        teacher_hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Loss of packed rows.

        Args:
            input_ids: int64 [B, T].
            position_ids: int64 [B, T], restarting at every sample.
            weights: float32 [B, T], of each position in the sum.
            lower_hidden: the stored residual stream entering layer l [B, T, D]; None computes it.
            teacher_hidden: the teacher's stored final normed hidden states [B, T, D]; None computes them.

        Returns:
            Float32 scalar; `last` keeps its parts.
        """
        recipe, decoder = self.recipe, self.student.model
        with torch.no_grad():
            if lower_hidden is None:
                state = decoder.forward_lower(input_ids, position_ids, **self._attention_arguments(position_ids))
            else:
                state = self._stored_state(lower_hidden, position_ids)
            teacher_inner = None
            if recipe.loss == "distillation" and teacher_hidden is None:
                teacher_hidden, teacher_inner = self.teacher.model.forward_upper(
                    state, student=False, collect_hidden=self.hidden_index is not None
                )
        # Checkpointing of transformers' layers only happens in training mode; there is no dropout to switch on.
        self.student.train(recipe.checkpoint_activations and torch.is_grad_enabled())
        hidden, inner = decoder.forward_upper(state, student=True, collect_hidden=self.hidden_index is not None)
        flat, flat_weights = hidden.flatten(0, 1), weights.flatten()
        if recipe.loss == "lm":
            targets, has_target = next_tokens(input_ids, position_ids)
            logits_loss = self.head(losses.lm_loss, flat, flat_weights * has_target, targets)
        else:
            flat_teacher = teacher_hidden.flatten(0, 1)
            logits_loss = self.head(losses.distillation_loss, flat, flat_weights, flat_teacher, recipe.temperature)
        hidden_loss = torch.zeros_like(logits_loss)
        if self.hidden_index is not None:
            pair = [
                (*states, final)[self.hidden_index].flatten(0, 1)
                for states, final in ((inner, hidden), (teacher_inner, teacher_hidden))
            ]
            hidden_loss = losses.hidden_state_loss(*pair, flat_weights)
        self.last = StepLosses(logits_loss.detach(), hidden_loss.detach())
        return recipe.logits_weight * logits_loss + recipe.hidden_state_weight * hidden_loss

    @torch.no_grad()
    def teacher_states(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[LowerState, torch.Tensor, tuple[torch.Tensor, ...]]:
        """The state entering layer l, the teacher's final normed hidden states, and those entering layers l..L-1."""
        state = self.student.model.forward_lower(input_ids, position_ids, **self._attention_arguments(position_ids))
        return state, *self.teacher.model.forward_upper(state, student=False, collect_hidden=True)

    def _attention_arguments(self, position_ids: torch.Tensor) -> dict:
        if not self.packed_attention:
            return {}
        return {
            "attention_mask": dict.fromkeys(LAYER_TYPES),  # given, so that no mask is made
            "lengths": attention.sample_lengths(position_ids),
        }

    def _stored_state(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> LowerState:
        arguments = self._attention_arguments(position_ids)
        masks = arguments.pop("attention_mask", None)
        decoder = self.student.model
        return LowerState(
            hidden=hidden,
            position_ids=position_ids,
            position_embeddings=decoder.rotary_emb(hidden, position_ids),
            attention_mask=decoder._masks(hidden, position_ids, None, None) if masks is None else masks,
            arguments={"use_cache": False, **arguments},
        )


class Head(nn.Module):
    """Applies a loss with the language-model head's weight; as a module, so that ZeRO-3 gathers the weight for it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, loss: Callable[..., torch.Tensor], hidden: torch.Tensor, *arguments: Any) -> torch.Tensor:
        """`loss(hidden, head weight, *arguments)`."""
        return loss(hidden, self.weight, *arguments)


def own_upper_layers(student: PreTrainedModel) -> None:
    """Give the student's layers >= l parameters of their own, in place of those shared with the teacher."""
    for layer in student.model.layers[student.spec.num_key_value_layers :]:
        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))


def next_tokens(input_ids: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each position of packed rows [B, T] its sample's next token, and 1.0 where there is one; both [B * T]."""
    targets = torch.zeros_like(input_ids)
    targets[:, :-1] = input_ids[:, 1:]
    has_target = torch.zeros(input_ids.shape, dtype=torch.float32, device=input_ids.device)
    has_target[:, :-1] = (position_ids[:, 1:] != 0).float()
    return targets.flatten(), has_target.flatten()
