"""How a variant is trained: a checked copy of one recipe of the configuration. Pure, no torch: planning checks it too."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    import torch

CHOICES = {
    "loss": ("distillation", "lm"),
    "logits_tokens": ("all", "assistant"),
    "train": ("qkv", "upper_layers", "all"),
    "start": ("copied", "fitted"),
    "schedule": ("linear", "cosine", "constant"),
    "teacher_states": ("online", "stored"),
    "attention": ("auto", "flash_attention_2", "flex_attention", "sdpa"),
    "dtype": ("bfloat16", "float32"),
    "zero_stage": (2, 3),
}
POSITIVE = (
    "temperature", "epochs", "max_steps", "batch_size", "micro_batch_size", "checkpoint_every", "checkpoint_minutes",
    "start_tokens",
)  # fmt: skip
NOT_NEGATIVE = (
    "logits_weight", "hidden_state_weight", "learning_rate", "weight_decay", "gradient_clipping", "start_ridge",
)  # fmt: skip
PAUSE = 10  # between two training states passes at least so many times what one takes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training recipe; the paper's values (App. B.1) stand in the configuration.

    Attributes:
        data: name of the data set.
        loss: "distillation" from the teacher's logits or "lm", next-token cross-entropy.
        temperature: T of the distillation loss.
        logits_weight: weight of the logits loss, T^2 KL(teacher || student) or the cross-entropy.
        logits_tokens: positions that the logits loss counts: "all", or those whose next token is the "assistant"'s. Its
            sum is divided by the number of all positions either way.
        hidden_state_weight: weight of the mean squared error between hidden states.
        hidden_state_layer: which of the L + 1 hidden states is compared, 0 the embeddings, L (or -1) the final norm's.
        train: "qkv", the SwiftKV parameters; "upper_layers", everything in layers >= l; or "all", every parameter of a
            model that is not rewired.
        train_norm: whether the SwiftKV parameters include norm_swiftkv; the paper names the projections only.
        start: what the SwiftKV parameters start from: "copied", the teacher's weights, as in the paper; or "fitted",
            regressions to the teacher's keys and values (`swiftkv.start.fit`).
        start_tokens: tokens a fit is made from, rounded up to whole micro-batches.
        start_ridge: penalty of the regressions, as a share of the mean square of a feature.
        teacher_states: "online", the teacher runs at every step, or "stored", its states were computed once.
        learning_rate: peak of AdamW's learning rate.
        adam_beta2: AdamW's decay of the second moment.
        weight_decay: AdamW's decoupled weight decay.
        warmup_ratio: share of the steps in which the learning rate rises linearly from 0.
        schedule: after warm-up, "linear" or "cosine" to 0, or "constant".
        epochs: passes over the data.
        max_steps: optimizer steps in place of whole epochs, or None.
        training_share: share of these steps that is run, at least one; the schedule ends where the training does.
        batch_size: packed rows an optimizer step, over all ranks.
        micro_batch_size: packed rows a rank runs at once.
        max_length: tokens a packed row.
        gradient_clipping: largest norm of the gradient; 0 does not clip.
        zero_stage: DeepSpeed ZeRO stage.
        dtype: of weights and activations; the optimizer's master weights are float32.
        seed: of sample order and packing.
        checkpoint_every: optimizer steps between two resumable states, at most.
        checkpoint_minutes: minutes between two, at most.
        gradient_checkpointing: recompute the student's layers in the backward pass; None does it with ZeRO-3.
        attention: kernel for packed rows on a GPU; "auto" takes the best there is (see `attention.choose`).
    """

    data: str
    loss: str
    temperature: float
    logits_weight: float
    logits_tokens: str
    hidden_state_weight: float
    hidden_state_layer: int
    train: str
    train_norm: bool
    start: str
    start_tokens: int
    start_ridge: float
    teacher_states: str
    learning_rate: float
    adam_beta2: float
    weight_decay: float
    warmup_ratio: float
    schedule: str
    epochs: float
    max_steps: int | None
    training_share: float
    batch_size: int
    micro_batch_size: int
    max_length: int
    gradient_clipping: float
    zero_stage: int
    dtype: str
    attention: str
    seed: int
    checkpoint_every: int
    checkpoint_minutes: float
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
        for name in POSITIVE:
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UserError(f"recipe: {name} must be above 0, not {getattr(self, name)}")
        for name in NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"recipe: {name} must be a number of at least 0, not {getattr(self, name)}")
        if not 0 <= self.adam_beta2 < 1:
            raise UserError(f"recipe: adam_beta2 must be at least 0 and below 1, not {self.adam_beta2}")
        if not 0 <= self.warmup_ratio <= 1:
            raise UserError(f"recipe: warmup_ratio must be between 0 and 1, not {self.warmup_ratio}")
        if not 0 < self.training_share <= 1:
            raise UserError(f"recipe: training_share must be above 0 and at most 1, not {self.training_share}")
        if self.max_length < 2:
            raise UserError(f"recipe: max_length must be at least 2, not {self.max_length}")
        if self.logits_weight == 0 and self.hidden_state_weight == 0:
            raise UserError("recipe: logits_weight and hidden_state_weight are both 0, so nothing would be trained")
        if self.loss == "lm" and self.hidden_state_weight:
            raise UserError("recipe: the lm loss has no teacher, so hidden_state_weight must be 0")
        if self.train == "all" and self.loss != "lm":
            raise UserError("recipe: train: all leaves no teacher to distill from, so its loss must be lm")
        if self.train == "all" and self.start == "fitted":
            raise UserError("recipe: train: all adds no SwiftKV parameters, so there is nothing to fit")

    @classmethod
    def from_dict(cls, content: Any) -> Recipe:
        """Check the recipe slice of the configuration.

        Raises:
            UserError: a key is unknown or missing, or a value is impossible.
        """
        if not isinstance(content, dict):
            raise UserError(f"recipe: a mapping is needed, not {content!r}")
        fields = dataclasses.fields(cls)
        if unknown := sorted(set(content) - {field.name for field in fields}):
            known = ", ".join(field.name for field in fields)
            raise UserError(f"recipe: unknown key {unknown[0]!r}; the keys are {known}")
        for field in fields:
            if field.default is dataclasses.MISSING and field.name not in content:
                raise UserError(f"recipe: the key {field.name!r} is missing")
        return cls(**content)

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        import torch

        return getattr(torch, self.dtype)

    @property
    def checkpoint_activations(self) -> bool:
        """Whether the student's layers are recomputed in the backward pass."""
        return self.zero_stage == 3 if self.gradient_checkpointing is None else self.gradient_checkpointing

    def check_spec(self, spec: SwiftKVSpec | None) -> None:
        """Refuse a rewiring that this recipe cannot train; None is a model that is not rewired.

        Raises:
            UserError: recipe and rewiring do not fit, or there is nothing to train.
        """
        if spec is None:
            if self.train != "all":
                raise UserError(f"recipe: train: {self.train} needs a rewired model; without rewiring it must be all")
            return
        if self.train == "all":
            raise UserError("recipe: train: all is for a model that is not rewired; use upper_layers")
        if spec.num_key_value_layers == spec.num_hidden_layers:
            raise UserError("the SwiftKV spec rewires no layer, so there is nothing to train")
        if self.start == "fitted" and spec.num_key_value_heads is not None:
            raise UserError("recipe: start: fitted keeps the model's own key/value heads; use start: copied")
        self.compared_state(spec)

    def compared_state(self, spec: SwiftKVSpec) -> int | None:
        """`hidden_state_layer` counted from the embeddings, 0; None if no hidden states are compared.

        Raises:
            UserError: it is not above layer l.
        """
        if not self.hidden_state_weight:
            return None
        layers = spec.num_hidden_layers
        index = self.hidden_state_layer + (layers + 1 if self.hidden_state_layer < 0 else 0)
        if not spec.num_key_value_layers < index <= layers:
            raise UserError(
                f"recipe: hidden_state_layer {self.hidden_state_layer} is not above layer l = "
                f"{spec.num_key_value_layers}, so teacher and student do not differ there"
            )
        return index

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
        return max(1, round(self.training_share * steps))

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
