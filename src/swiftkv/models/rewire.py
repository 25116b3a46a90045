"""Turn an ordinary model into a SwiftKV model with shared weights and new projections."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from swiftkv.errors import UserError
from swiftkv.models.classes import CLASSES
from swiftkv.quantize.linear import dense_weight, float8_names, use_float8
from swiftkv.spec import SwiftKVSpec

IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")  # absent from `to_dict`


def rewire(
    teacher: PreTrainedModel, spec: SwiftKVSpec, start: dict[str, nn.Parameter] | None = None
) -> PreTrainedModel:
    """Make the SwiftKV model of `teacher`, before training.

    Args:
        teacher: a transformers language model of one of `ARCHITECTURES`.
        spec: the rewiring.
        start: start values by name; None means `start_values`.

    Returns:
        The model with `config.swiftkv` True; it shares all parameters but the added ones with the teacher.

    Raises:
        UserError: unsupported architecture, or `spec` does not fit the model.
    """
    implementations = {name: getattr(teacher.config, f"_{name}") for name in IMPLEMENTATIONS}
    config = swiftkv_config(teacher.config.to_dict() | implementations, spec)
    with torch.device("meta"):
        model = CLASSES[teacher.config.model_type](config)
    use_float8(model, float8_names(teacher))
    tensors = dict(teacher.state_dict(keep_vars=True))
    tensors.update(start_values(teacher, spec) if start is None else start)
    model.load_state_dict(tensors, assign=True)
    # Not in the state dict; copied, so that l = L is bit-equal to the teacher.
    model.model.rotary_emb = copy.deepcopy(teacher.model.rotary_emb)
    model.model.rotary_emb.config = config
    model.generation_config = copy.deepcopy(teacher.generation_config)
    model.name_or_path = teacher.name_or_path
    return model.train(teacher.training)


def swiftkv_config(fields: Mapping[str, Any], spec: SwiftKVSpec) -> PreTrainedConfig:
    """Make the configuration of a rewired model from the fields of the ordinary model's; raises as `rewire`."""
    if (causal_lm := CLASSES.get(fields["model_type"])) is None:
        raise UserError(f"SwiftKV cannot rewire a {fields['model_type']!r} model, only {', '.join(sorted(CLASSES))}")
    layers = fields["num_hidden_layers"]
    if spec.num_hidden_layers != layers:
        raise UserError(f"the SwiftKV spec is for {spec.num_hidden_layers} layers, but the model has {layers}")
    added = {"swiftkv": True, "architectures": [causal_lm.__name__], **spec.to_config()}
    try:
        return causal_lm.config_class(**{name: value for name, value in fields.items() if name != "model_type"} | added)
    except ValueError as error:
        raise UserError(f"the SwiftKV spec does not fit the model: {error}") from None


@torch.no_grad()
def start_values(teacher: PreTrainedModel, spec: SwiftKVSpec) -> dict[str, nn.Parameter]:
    """Copy start values from the teacher.

    Query projections are the layer's own; key and value projections are the mean over the AcrossKV group; norm_swiftkv
    is layer l's input_layernorm; an early exit head is lm_head. For fewer KV heads (Appendix C.1) neighboring heads are
    averaged, for more they are repeated.

    Returns:
        Parameters by name, in the teacher's dtype (16-bit for FP8 weights) and on its device.
    """
    layers, values = teacher.model.layers, {}
    attention = CLASSES[teacher.config.model_type].model_class.attention_class
    for group in spec.groups:
        for layer in group:
            for projection in () if spec.own_key_values else attention.query_projections:
                for name, tensor in _parameters(layers[layer], projection, teacher.dtype).items():
                    values[f"model.layers.{layer}.self_attn.{projection}_swiftkv.{name}"] = tensor.clone()
        for projection in attention.key_value_projections:
            merged = [_parameters(layers[layer], projection, teacher.dtype) for layer in group]
            for name, like in merged[0].items():
                # In float32, so that a 16-bit mean is rounded once; a group may span several GPUs.
                mean = torch.stack([tensors[name].float().to(like.device) for tensors in merged]).mean(0)
                if projection in ("k_proj", "v_proj"):  # norms have one head
                    mean = change_heads(mean, teacher.config.num_key_value_heads, spec.num_key_value_heads)
                values[f"model.layers.{group.start}.self_attn.{projection}_swiftkv.{name}"] = mean.to(like.dtype)
    if spec.groups:
        values["model.norm_swiftkv.weight"] = layers[spec.num_key_value_layers].input_layernorm.weight.clone()
    if spec.early_exit:
        values["early_exit_head_swiftkv.weight"] = teacher.lm_head.weight.clone()
    return {name: nn.Parameter(value) for name, value in values.items()}


def _parameters(layer: nn.Module, projection: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the parameters of an attention module, FP8 weights dequantized to `dtype`; empty if it is None."""
    module = getattr(layer.self_attn, projection)
    if module is None:
        return {}
    parameters = dict(module.named_parameters())
    if parameters.pop("weight_scale", None) is not None:
        parameters["weight"] = dense_weight(module, dtype)
    return parameters


def change_heads(tensor: torch.Tensor, heads: int, wanted: int | None) -> torch.Tensor:
    """Average neighboring KV heads to get fewer, or repeat each to get more (Appendix C.1).

    Args:
        tensor: weight or bias [heads * head size, ...].
        heads: its number of heads.
        wanted: heads of the result, a divisor or a multiple of `heads`; None changes nothing.
    """
    if wanted is None or wanted == heads:
        return tensor
    split = tensor.unflatten(0, (heads, -1))
    if wanted < heads:
        split = split.unflatten(0, (wanted, -1)).mean(1)
    else:
        split = split.repeat_interleave(wanted // heads, dim=0)
    return split.flatten(0, 1)
