"""How a variant is trained: a checked copy of one recipe of the configuration."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch

from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CHOICES = {
    "loss": ("distillation", "lm"),
    "train": ("qkv", "upper_layers"),
    "schedule": ("linear", "cosine", "constant"),
    "teacher_states": ("online", "stored"),
    "dtype": tuple(DTYPES),
    "zero_stage": (2, 3),
}


@dataclass(frozen=True)
class Recipe:
    """A training recipe; the defaults are the paper's (App. B.1).

    Attributes:
        data: name of the data set.
        loss: "distillation" from the teacher's logits or "lm", next-token cross-entropy.
        temperature: T of the distillation loss.
        logits_weight: weight of the logits loss, T^2 KL(teacher || student) or the cross-entropy.
        hidden_state_weight: weight of the mean squared error between hidden states.
        hidden_state_layer: which of the L + 1 hidden states is compared, 0 the embeddings, L (or -1) the final norm's.
        train: "qkv", the SwiftKV parameters, or "upper_layers", everything in layers >= l.
        teacher_states: "online", the teacher runs at every step, or "stored", its states were computed once.
        learning_rate: peak of AdamW's learning rate.
        weight_decay: AdamW's decoupled weight decay.
        warmup_ratio: share of the steps in which the learning rate rises linearly from 0.
        schedule: after warm-up, "linear" or "cosine" to 0, or "constant".
        epochs: passes over the data.
        max_steps: optimizer steps in place of whole epochs, or None.
        batch_size: packed rows an optimizer step, over all ranks.
        micro_batch_size: packed rows a rank runs at once.
        max_length: tokens a packed row.
        gradient_clipping: largest norm of the gradient; 0 does not clip.
        zero_stage: DeepSpeed ZeRO stage.
        dtype: of weights and activations; the optimizer's master weights are float32.
        seed: of sample order and packing.
        checkpoint_every: optimizer steps between two resumable states.
        gradient_checkpointing: recompute the student's layers in the backward pass; None does it with ZeRO-3.
    """

    data: str
    loss: str = "distillation"
    temperature: float = 2.0
    logits_weight: float = 1.0
    hidden_state_weight: float = 0.0
    hidden_state_layer: int = -2
    train: str = "qkv"
    teacher_states: str = "online"
    learning_rate: float = 3e-4
    weight_decay: float = 0.05
    warmup_ratio: float = 0.05
    schedule: str = "linear"
    epochs: float = 2
    max_steps: int | None = None
    batch_size: int = 32
    micro_batch_size: int = 1
    max_length: int = 8192
    gradient_clipping: float = 1.0
    zero_stage: int = 2
    dtype: str = "bfloat16"
    seed: int = 42
    checkpoint_every: int = 200
    gradient_checkpointing: bool | None = None

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Recipe).items():
            value = getattr(self, name)
            allowed = getattr(kind, "__args__", (kind,))
            if float in allowed:
                allowed = (*allowed, int)
            if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
                raise UserError(f"recipe: {name} cannot be {value!r}")
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"recipe: {name} must be one of {', '.join(map(str, choices))}, not {value!r}")
        for name in ("temperature", "epochs", "max_steps", "batch_size", "micro_batch_size", "checkpoint_every"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UserError(f"recipe: {name} must be above 0, not {getattr(self, name)}")
        for name in ("logits_weight", "hidden_state_weight", "learning_rate", "weight_decay", "gradient_clipping"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"recipe: {name} must be a number of at least 0, not {getattr(self, name)}")
        if not 0 <= self.warmup_ratio <= 1:
            raise UserError(f"recipe: warmup_ratio must be between 0 and 1, not {self.warmup_ratio}")
        if self.max_length < 2:
            raise UserError(f"recipe: max_length must be at least 2, not {self.max_length}")
        if self.logits_weight == 0 and self.hidden_state_weight == 0:
            raise UserError("recipe: logits_weight and hidden_state_weight are both 0, so nothing would be trained")
        if self.loss == "lm" and self.hidden_state_weight:
            raise UserError("recipe: the lm loss has no teacher, so hidden_state_weight must be 0")
        if self.teacher_states == "stored" and self.hidden_state_weight:
            raise UserError("recipe: stored teacher states hold no inner hidden states; use teacher_states: online")

    @classmethod
    def from_dict(cls, content: Any) -> Recipe:
        """Check the recipe slice of the configuration.

        Raises:
            UserError: a key is unknown or missing, or a value is impossible.
        """
        if not isinstance(content, dict):
            raise UserError(f"recipe: a mapping is needed, not {content!r}")
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(content) - set(known)):
            raise UserError(f"recipe: unknown key {unknown[0]!r}; the keys are {', '.join(known)}")
        if "data" not in content:
            raise UserError("recipe: the key 'data' is missing")
        return cls(**content)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """As `from_dict`, from the JSON text a rule passes on the command line."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise UserError(f"recipe: not valid JSON ({error})") from None

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        return DTYPES[self.dtype]

    @property
    def checkpoint_activations(self) -> bool:
        """Whether the student's layers are recomputed in the backward pass."""
        return self.zero_stage == 3 if self.gradient_checkpointing is None else self.gradient_checkpointing

    def total_steps(self, rows: int) -> int:
        """Optimizer steps for `rows` packed rows.

        Raises:
            UserError: the data does not fill one step.
        """
        steps = self.max_steps or int(self.epochs * rows / self.batch_size)
        if rows == 0 or steps == 0:
            raise UserError(
                f"the packed data has {rows} rows of {self.max_length} tokens, too few for one step of "
                f"{self.batch_size} rows; give more data or a smaller batch_size"
            )
        return steps

    def accumulation(self, ranks: int) -> int:
        """Micro-batches each of `ranks` runs in an optimizer step.

        Raises:
            UserError: the batch does not divide.
        """
        together = ranks * self.micro_batch_size
        if self.batch_size % together:
            raise UserError(
                f"recipe: batch_size {self.batch_size} is not a multiple of {ranks} ranks x micro_batch_size "
                f"{self.micro_batch_size}"
            )
        return self.batch_size // together

    def learning_rate_at(self, step: int, total: int) -> float:
        """Learning rate of the optimizer step `step` (from 0) of `total`."""
        warmup = math.ceil(self.warmup_ratio * total)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "constant":
            return self.learning_rate
        left = (total - step) / max(1, total - warmup)
        return self.learning_rate * (left if self.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left)))


def spec_from_json(text: str) -> SwiftKVSpec:
    """The rewiring a rule passes on the command line as JSON.

    Raises:
        UserError: it is no mapping of SwiftKVSpec's fields, or impossible.
    """
    try:
        return SwiftKVSpec(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise UserError(f"SwiftKV spec {text}: {error}") from None
