"""Recipes: how a variant is trained. Importing this imports no torch, as planning reads recipes too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from swiftkv.errors import UserError
from swiftkv.section import Fraction, Integer, NotNegative, Positive, Section, Seed, Share, Text, Whole, key
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    import torch

PAUSE = 10  # between two training states passes at least so many times what one takes


class PackingSettings(Section):
    """Settings that change the packed rows; recipes with equal ones share a file."""

    data: Text = key("A key under data.")
    max_length: Annotated[Whole, Field(ge=2)] = key("Tokens a packed row.")
    batch_size: Whole | Literal[0] = key(
        "Packed rows an optimizer step, over all ranks; 0 in a configuration: one micro-batch a rank."
    )
    max_steps: Whole | None = key("Optimizer steps in place of whole epochs; null runs all epochs.")
    seed: Seed = key("Seed of sample order and packing.")


class ForwardSettings(PackingSettings):
    """Settings that change forward passes over packed rows, and so the teacher's states."""

    micro_batch_size: Whole = key("Packed rows a rank computes at once.")
    dtype: Literal["auto", "bfloat16", "float32"] = key(
        "Number format of weights and activations; `auto` is bfloat16 on GPUs and on processors that multiply it, float32 on "
        "others. Master weights are float32."
    )
    attention: Literal["auto", "flash_attention_2", "flex_attention", "sdpa"] = key(
        "Kernel for packed rows on a GPU; `auto` takes the best there is."
    )

    def on_this_device(self) -> Self:
        """Return the settings with the number format that `auto` means on this process's device."""
        from swiftkv.device import dtype_name

        return self.model_copy(update={"dtype": dtype_name(self.dtype)})

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it, of settings that `on_this_device` has given."""
        import torch

        return getattr(torch, self.dtype)


class FitSettings(ForwardSettings):
    """Settings that change the regressions of a fitted start."""

    start_tokens: Whole = key("Tokens a fit is made from, rounded up to whole micro-batches.")
    start_ridge: NotNegative = key("Penalty of the regressions, as a share of the mean square of a feature.")


class WeightSettings(FitSettings):
    """Settings that change the trained weights, besides the model and its rewiring."""

    loss: Literal["distillation", "lm"] = key("From the teacher's logits, or `lm`: next-token cross-entropy.")
    temperature: Positive = key("T of the distillation loss.")
    logits_weight: NotNegative = key("Weight of the logits loss, T^2 KL(teacher || student) or the cross-entropy.")
    logits_tokens: Literal["all", "assistant", "assistant_unshifted"] = key(
        "Positions the logits loss counts: `all`, those whose next token is the `assistant`'s, or those of the assistant's "
        "own tokens (`assistant_unshifted`, as the authors' trainer counts). Its sum is divided by the number of all "
        "positions."
    )
    hidden_state_weight: NotNegative = key("Weight of the mean squared error between hidden states; 0 leaves it out.")
    hidden_state_layer: Integer = key("Which hidden state is compared: 0 the embeddings, L (or -1) the final norm's.")
    train: Literal["qkv", "upper_layers", "all"] = key(
        "`qkv`: the SwiftKV parameters; `upper_layers`: everything in layers l and above; `all`: every parameter "
        "of a model that is not rewired."
    )
    train_norm: bool = key("Whether the SwiftKV parameters include norm_swiftkv; the paper names the projections only.")
    start: Literal["copied", "fitted"] = key(
        "What the SwiftKV parameters start from: the teacher's weights, `copied`, as in the paper; or regressions"
        " to its keys and values, `fitted`."
    )
    learning_rate: Share = key("Peak learning rate of AdamW.")
    adam_beta2: NotNegative = key("AdamW's decay of the second moment.", lt=1)
    weight_decay: NotNegative = key("AdamW's decoupled weight decay.")
    warmup_ratio: Fraction = key("Share of the steps in which the learning rate rises linearly from 0.")
    schedule: Literal["linear", "cosine", "constant"] = key("After warm-up: to 0, or `constant`.")
    epochs: Positive = key("Passes over the data.")
    training_share: Share = key("Share of these steps that is run; the schedule ends where the training does.")
    gradient_clipping: NotNegative = key("Largest norm of the gradient; 0 does not clip.")
    zero_stage: Literal[2, 3] = key("DeepSpeed ZeRO stage; in the configuration the model's.", 2)


class Recipe(WeightSettings):
    """A training recipe, also with settings of memory, speed and states; the paper's values (App. B.1) stand in config.yaml."""

    teacher_states: Literal["online", "stored"] = key("Whether the teacher runs in every step or once for all.")
    checkpoint_every: Whole = key("Optimizer steps between two resumable states, at most.")
    checkpoint_minutes: Positive = key("Minutes between two, at most.")
    gradient_checkpointing: bool | None = key("Recompute the student's layers; null does so with ZeRO-3.", None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.logits_weight == 0 and self.hidden_state_weight == 0:
            raise ValueError("logits_weight and hidden_state_weight are both 0, so nothing would be trained")
        if self.loss == "lm" and self.hidden_state_weight:
            raise ValueError("the lm loss has no teacher, so hidden_state_weight must be 0")
        if self.train == "all" and self.loss != "lm":
            raise ValueError("train: all leaves no teacher to distill from, so its loss must be lm")
        if self.train == "all" and self.start == "fitted":
            raise ValueError("train: all adds no SwiftKV parameters, so there is nothing to fit")
        return self

    @property
    def checkpoint_activations(self) -> bool:
        """Return True if the student's layers are recomputed in the backward pass."""
        return self.zero_stage == 3 if self.gradient_checkpointing is None else self.gradient_checkpointing

    def check_spec(self, spec: SwiftKVSpec | None) -> None:
        """Refuse a rewiring that this recipe cannot train; None is a model that is not rewired.

        Raises:
            UserError: recipe and rewiring do not fit, or there is nothing to train.
        """
        if spec is None:
            if self.train != "all":
                raise UserError(f"train: {self.train} needs a rewired model; without rewiring it must be all")
            return
        if self.train == "all":
            raise UserError("train: all is for a model that is not rewired; use upper_layers")
        if spec.num_key_value_layers == spec.num_hidden_layers:
            raise UserError("the SwiftKV spec rewires no layer, so there is nothing to train")
        if self.start == "fitted" and spec.num_key_value_heads is not None:
            raise UserError("start: fitted keeps the model's own key/value heads; use start: copied")
        if spec.own_key_values and self.train != "qkv":
            raise UserError(f"own_key_values keeps the model's weights, so train is qkv, not {self.train}")
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
                f"hidden_state_layer {self.hidden_state_layer} is not above layer l = "
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
                f"batch_size {self.batch_size} is not a multiple of {ranks} ranks x micro_batch_size "
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
