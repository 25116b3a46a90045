"""The architectures that SwiftKV knows: one row each, which cost model, start values, serving and configuration read.

Nothing here needs torch. What an architecture computes in its own way is a module in `swiftkv.models`, which its row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.errors import UserError


@dataclass(frozen=True)
class Architecture:
    """What is known of an architecture before any model of it is loaded.

    A bias is always there (True), never (False), or where the field of config.json with this name says so.

    Attributes:
        classes: how the names of its classes begin, in transformers, here and in vLLM: `Qwen2` of `Qwen2ForCausalLM`.
        module: module with the classes of its own (`swiftkv.models.classes`); None where it has none.
        bias: whether the projections of queries, keys and values have a bias.
        output_bias: whether the projection after attention has one.
        window: the layers with a sliding window: None, "every layer", or "upper layers", those from `max_window_layers` on
            where `use_sliding_window` is set.
        normalized: whether queries and keys are normalized by head.
        latent: whether keys and values of all heads are made from one latent, and feed-forward layers are experts.
        fitted: the projections of a layer's normed input that a fitted start makes anew.
        decoder_layer: vLLM's layer of this architecture, as module and class in `vllm.model_executor.models`.
        reads_head_dim: whether that layer heeds `head_dim`.
        not_served: why its rewired form is scored but not served (docs/serving.md); empty where it is served.
    """

    classes: str
    module: str | None = None
    bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    window: str | None = None
    normalized: bool = False
    latent: bool = False
    fitted: tuple[str, ...] = ("k_proj", "v_proj")
    decoder_layer: str = "llama.LlamaDecoderLayer"
    reads_head_dim: bool = True
    not_served: str = ""


# By transformers' model_type of the ordinary model.
ARCHITECTURES = {
    "llama": Architecture("Llama"),
    "mistral": Architecture("Mistral", bias=False, output_bias=False, window="every layer"),
    "qwen2": Architecture(
        "Qwen2",
        bias=True,
        output_bias=False,
        window="upper layers",
        decoder_layer="qwen2.Qwen2DecoderLayer",
        reads_head_dim=False,
    ),
    "qwen3": Architecture(
        "Qwen3",
        module="swiftkv.models.qwen3",
        window="upper layers",
        normalized=True,
        decoder_layer="qwen3.Qwen3DecoderLayer",
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2",
        module="swiftkv.models.deepseek_v2",
        latent=True,
        fitted=("kv_a_proj_with_mqa",),  # what makes keys and values of the latent stays the teacher's
        not_served="vLLM's latent attention shares no KV cache between layers (MLACommonImpl: KV sharing is not supported "
        "for MLA), so layers >= l could neither skip prompt tokens nor share a cache",
    ),
}


def ordinary(model_type: str) -> str:
    """transformers' model_type of the model that one of this model_type is, or was rewired from."""
    return model_type.removesuffix("_swiftkv")


def architecture(model_type: object) -> Architecture:
    """The row of an ordinary or a rewired model's model_type.

    Raises:
        UserError: there is none.
    """
    row = ARCHITECTURES.get(ordinary(str(model_type)))
    if row is None:
        raise UserError(
            f"SwiftKV does not know {model_type!r} models, only {', '.join(sorted(ARCHITECTURES))} "
            "(docs/adding/model.md says how to add one)"
        )
    return row


def has_bias(bias: bool | str, config: Mapping[str, Any]) -> bool:
    """Whether a model with the config.json `config` has one of a row's biases."""
    return bool(config.get(bias)) if isinstance(bias, str) else bias


def check_latent_heads(latent: bool, heads: int | None) -> None:
    """Refuse another number of KV heads for layers >= l where latent attention has none; None is always right.

    Raises:
        ValueError: it is another number.
    """
    if latent and heads is not None:
        raise ValueError("latent attention has no key/value heads that layers could have more or fewer of")


def check_fit(model_type: str, group_size: int) -> None:
    """Refuse a start that cannot be fitted.

    Raises:
        UserError: keys are normalized, or AcrossKV groups of latent attention: each layer makes its keys of a latent in
            a basis of its own.
    """
    row = architecture(model_type)
    if row.normalized:
        raise UserError(f"the keys of {model_type} are normalized, so no linear fit gives them; use start: copied")
    if row.latent and group_size > 1:
        raise UserError(
            "a fitted start of latent attention has no AcrossKV groups, as each layer's latent has a basis of its own; "
            "use start: copied"
        )


def check_served(model_type: str) -> None:
    """Refuse a rewired model that vLLM cannot serve.

    Raises:
        UserError: with the reason.
    """
    if reason := architecture(model_type).not_served:
        raise UserError(f"a SwiftKV model of {ordinary(model_type)!r} cannot be served: {reason}")
