"""Table of the supported architectures, without torch: read by cost model, start values, serving and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.errors import UserError


@dataclass(frozen=True)
class Architecture:
    """Facts about an architecture.

    A bias is True, False, or the name of the field in config.json that tells.

    Attributes:
        classes: prefix of its class names in transformers, here and in vLLM: `Qwen2` of `Qwen2ForCausalLM`.
        module: module with its own classes (`swiftkv.models.classes`), or None.
        bias: bias of the query, key and value projections.
        output_bias: bias of the projection after attention.
        window: layers with a sliding window: None, "every layer", or "upper layers", those from `max_window_layers` on if
            `use_sliding_window` is set.
        normalized: whether queries and keys are normalized by head.
        latent: whether it has latent attention.
        experts: field in config.json that holds the number of routed experts, or None.
        fitted: projections that a fitted start replaces.
        decoder_layer: vLLM's layer, as module and class in `vllm.model_executor.models`.
        reads_head_dim: whether that layer reads `head_dim`.
        not_served: why its rewired form cannot be served (docs/develop/plugin.md); empty if it can.
    """

    classes: str
    module: str | None = None
    bias: bool | str = "attention_bias"
    output_bias: bool | str = "attention_bias"
    window: str | None = None
    normalized: bool = False
    latent: bool = False
    experts: str | None = None
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
    "qwen3_moe": Architecture(
        "Qwen3Moe",
        module="swiftkv.models.qwen3_moe",
        window="every layer",
        normalized=True,
        experts="num_experts",
        decoder_layer="qwen3_moe.Qwen3MoeDecoderLayer",
    ),
    "deepseek_v2": Architecture(
        "DeepseekV2",
        module="swiftkv.models.deepseek_v2",
        latent=True,
        experts="n_routed_experts",
        fitted=("kv_a_proj_with_mqa",),  # the expansion of the latent stays the teacher's
        not_served="vLLM's latent attention shares no KV cache between layers (MLACommonImpl: KV sharing is not supported "
        "for MLA), so layers >= l could neither skip prompt tokens nor share a cache",
    ),
}


# The only quantization that is loaded: keys of a `quantization_config` and of its only group.
_NUMBER = {"num_bits": 8, "type": "float", "symmetric": True}
_SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "targets": ["Linear"],
    "weights": _NUMBER | {"strategy": "channel", "dynamic": False},
    "input_activations": _NUMBER | {"strategy": "token", "dynamic": True},
    "output_activations": None,
}


def architecture(model_type: object) -> Architecture:
    """Return the row of an ordinary or rewired model_type; raise a `UserError` if there is none."""
    row = ARCHITECTURES.get(str(model_type).removesuffix("_swiftkv"))
    if row is None:
        raise UserError(
            f"SwiftKV does not know {model_type!r} models, only {', '.join(sorted(ARCHITECTURES))} "
            "(docs/adding/model.md says how to add one)"
        )
    return row


def has_bias(bias: bool | str, config: Mapping[str, Any]) -> bool:
    """Return True if a model with the config.json `config` has `Architecture.bias` or `output_bias`."""
    return bool(config.get(bias)) if isinstance(bias, str) else bias


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Return the KV heads of a layer of an ordinary model with the config.json `config`."""
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def check_latent_heads(latent: bool, heads: int | None) -> None:
    """Raise a `ValueError` if layers >= l of latent attention are to have another number of KV heads."""
    if latent and heads is not None:
        raise ValueError("latent attention has no key/value heads that layers could have more or fewer of")


def check_fit(model_type: str, group_size: int) -> None:
    """Raise a `UserError` if a start cannot be fitted: normalized keys, or AcrossKV groups of latent attention."""
    row = architecture(model_type)
    if row.normalized:
        raise UserError(f"the keys of {model_type} are normalized, so no linear fit gives them; use start: copied")
    if row.latent and group_size > 1:
        raise UserError(
            "a fitted start of latent attention has no AcrossKV groups, as each layer's latent has a basis of its own; "
            "use start: copied"
        )


def check_served(model_type: str) -> None:
    """Raise a `UserError` with the reason if vLLM cannot serve a rewired model."""
    if reason := architecture(model_type).not_served:
        raise UserError(f"a SwiftKV model of {model_type.removesuffix('_swiftkv')!r} cannot be served: {reason}")


def check_loaded(config: Mapping[str, Any], place: str) -> None:
    """Raise a `UserError` if the weights are quantized in a form that can be neither trained nor scored.

    Args:
        config: the content of a config.json of a known model_type.
        place: how the sentence calls it.
    """
    if not (given := config.get("quantization_config")):
        return
    if architecture(config.get("model_type")).experts:
        raise UserError(f"{place} has quantized experts, which can be served but neither trained nor scored")
    groups = list((given.get("config_groups") or {}).values())
    given = (groups[0] if len(groups) == 1 else {}) | given
    for what, wanted in _SCHEME.items():
        value = given.get(what)
        if isinstance(value, Mapping) and isinstance(wanted, dict):
            value = {key: value.get(key) for key in wanted}
        if value != wanted:
            raise UserError(
                f"{place} is of a checkpoint quantized in another way than FP8 by compressed-tensors with a scale an "
                f"output channel and a token: its {what} is {value!r}, not {wanted!r}; use one in this form or in 16 bits"
            )
