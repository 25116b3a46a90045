"""Where each tensor of a SwiftKV checkpoint goes in the vLLM model, and what must be there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from swiftkv.errors import UserError
from swiftkv.serve.attention import SwiftKVCaches
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.(\w+)")
EARLY_EXIT_HEAD = "early_exit_head_swiftkv.weight"  # vLLM serves at full depth
_TEACHER = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
_STACKED = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}


def load_weights(
    config: PretrainedConfig,
    parameters: dict[str, torch.nn.Parameter],
    caches: SwiftKVCaches | None,
    weights: Iterable[tuple[str, torch.Tensor]],
) -> set[str]:
    """Copy a checkpoint into the model; the teacher's q, k and v of layers >= l and an early exit head are passed over.

    Args:
        config: the model's configuration.
        parameters: the vLLM model's parameters by name, on their device.
        caches: the model's caches of layers >= l; None without any.
        weights: names of the published format and tensors, streamed.

    Returns:
        Names of the parameters that were filled.

    Raises:
        UserError: a tensor is missing, has no place, or has the wrong shape; the sentence names it.
    """
    spec, missing = SwiftKVSpec.from_config(config), _expected(config)
    filled = set()
    for name, tensor in weights:
        place = _place(name, spec)
        if place is None or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        target, shard = place
        if target not in parameters:
            raise UserError(
                f"the checkpoint holds the tensor {name}, which a model of its config.json has no place for"
            )
        shape = missing.pop(name, None)
        if shape is not None and tuple(tensor.shape) != shape:
            raise UserError(f"tensor {name} has shape {list(tensor.shape)}, but config.json asks for {list(shape)}")
        if tensor.dtype == torch.float8_e4m3fn and name.endswith(".weight"):
            scale = f"{name}_scale"
            missing |= {} if scale in filled else {scale: None}
        if caches is not None and "kv_proj_swiftkv" in target and tensor.ndim and caches.heads.copies > 1:
            tensor = _copy_heads(tensor, caches.heads)
        parameter = parameters[target]
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, tensor, *(() if shard is None else (shard,)))
        filled |= {target, name}
    if missing:
        raise UserError(
            f"the checkpoint has no tensor {min(missing)}, which its config.json asks for "
            f"({len(missing)} missing in all)"
        )
    return filled & parameters.keys()


def _place(name: str, spec: SwiftKVSpec) -> tuple[str, str | int | None] | None:
    """The parameter a tensor belongs to and its part of it; None for what is not needed."""
    if name.endswith("rotary_emb.inv_freq"):  # in old checkpoints
        return None
    if name == EARLY_EXIT_HEAD:
        return None
    match = _LAYER.fullmatch(name)
    if match is None:
        return name, None
    layer, module, kind = int(match[1]), match[2], match[3]
    prefix = name[: name.index(f".{module}.{kind}")]
    if layer >= spec.num_key_value_layers and module in _TEACHER:
        return None
    if module in ("k_proj_swiftkv", "v_proj_swiftkv", "k_norm_swiftkv"):
        if layer not in spec.owners:
            raise UserError(
                f"the checkpoint holds the tensor {name}, but with num_key_value_layers {spec.num_key_value_layers} and "
                f"key_value_group_size {spec.key_value_group_size} of its config.json layer {layer} has no such projection"
            )
        group = spec.owners.index(layer)
        if module == "k_norm_swiftkv":
            return f"model.caches.k_norm_swiftkv.{kind}", group
        shard = group if module == "k_proj_swiftkv" else len(spec.owners) + group
        return f"model.caches.kv_proj_swiftkv.{kind}", shard
    stacked, shard = _STACKED.get(module, (module, None))
    return f"{prefix}.{stacked}.{kind}", shard


def _expected(config: PretrainedConfig) -> dict[str, tuple[int, ...] | None]:
    """Names and shapes every checkpoint of this configuration must hold; scales of quantized weights come on top."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unneeded = tied | {EARLY_EXIT_HEAD} | set(reference.model.teacher_projection_names(prefix="model."))
    return {name: tuple(t.shape) for name, t in reference.state_dict().items() if name not in unneeded}


def _copy_heads(tensor: torch.Tensor, heads) -> torch.Tensor:
    """Repeat each key/value head for all ranks that hold it; [heads * head_dim, ...] or one scale a row."""
    per_head = tensor.unflatten(0, (heads.total_key_value, -1))
    return per_head.repeat_interleave(heads.copies, dim=0).flatten(0, 1)
