"""Load the tensors of a SwiftKV checkpoint into the vLLM model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from swiftkv.errors import UserError
from swiftkv.models.checkpoint import saved_shapes
from swiftkv.quantize.linear import is_quantized
from swiftkv.serve.attention import Heads, SwiftKVCaches
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.(\w+)")
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+)\.(\w+)")
# Calibration of a float8 cache: of an attention layer, or of the projection that fills the cache.
_CACHE_SCALE = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\.(attn\.)?(?P<of>[qkv])"
    r"(_(?P<kind>scale|zero_point)|_proj(_swiftkv)?\.(output_scale|[qkv]_scale))"
)
# Parameters of vLLM's linear layers that a quantized checkpoint provides.
_STORED = re.compile(r"(q?weight|weight_packed|weight_zero_point|qzeros|scales|weight_\w*scale\w*)")
EARLY_EXIT_HEAD = "early_exit_head_swiftkv."  # its weight and, of FP8, its scale; vLLM serves at full depth
_TEACHER = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
_STACKED = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
# vLLM's parameter of all experts, and its shards.
_STACKED_EXPERTS = {"gate_proj": ("w13", "w1"), "up_proj": ("w13", "w3"), "down_proj": ("w2", "w2")}
_BEFORE_KIND = re.compile(r".*\.(w13_|w2_)?")  # of a parameter's name; its kind is "weight", "scales" and the like


def load_weights(
    config: PretrainedConfig,
    parameters: dict[str, torch.nn.Parameter],
    caches: SwiftKVCaches | None,
    weights: Iterable[tuple[str, torch.Tensor]],
    complete: bool = True,
) -> set[str]:
    """Copy a checkpoint into the model, without early exit head and teacher projections of layers >= l.

    Args:
        config: the model's configuration.
        parameters: the vLLM model's parameters by name.
        caches: the model's caches of layers >= l, or None.
        weights: names in the published format, and tensors.
        complete: whether `weights` are the whole checkpoint or replace some of it.

    Returns:
        Names of the loaded parameters.

    Raises:
        UserError: a tensor is missing, unknown or of a wrong shape.
    """
    spec, shapes = SwiftKVSpec.from_config(config), _shapes(config)
    quantized = is_quantized(config)
    missing = (_stored(shapes, parameters, spec) if quantized else set(shapes)) if complete else set()
    filled = set()
    for name, tensor in weights:
        place = _place(name, spec)
        if place is None or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        target, *shard = place
        if target not in parameters:
            if _CACHE_SCALE.fullmatch(name) or (quantized and _says_nothing(name, tensor)):
                continue
            raise UserError(
                f"the checkpoint holds the tensor {name}, which a model of its config.json has no place for"
            )
        missing.discard(name)
        shape = shapes.get(name)
        # A uint8 tensor holds two 4-bit numbers per element.
        if shape is not None and tuple(tensor.shape) != shape and tensor.dtype != torch.uint8:
            raise UserError(f"tensor {name} has shape {list(tensor.shape)}, but config.json asks for {list(shape)}")
        parameter = parameters[target]
        if caches is not None and "kv_proj_swiftkv" in target and caches.heads.copies > 1:
            tensor = _copy_heads(name, tensor, parameter, caches.heads)
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, tensor, *shard)
        filled.add(target)
    if missing:
        raise UserError(
            f"the checkpoint has no tensor {min(missing)}, which its config.json asks for "
            f"({len(missing)} missing in all)"
        )
    return filled | _share_cache_scales(parameters, spec)


def _says_nothing(name: str, tensor: torch.Tensor) -> bool:
    """Return True if a tensor is redundant: a bias of zeros, or GPTQ's groups in the order of the inputs."""
    if name.endswith(".g_idx"):
        return bool((tensor.diff() >= 0).all())
    return name.endswith(".bias") and not tensor.any()


def _place(name: str, spec: SwiftKVSpec) -> tuple[str, *tuple[str | int, ...]] | None:
    """Return a tensor's parameter and the arguments that name its shard to the loader; None if it is not needed."""
    if name.startswith(EARLY_EXIT_HEAD) or name.endswith("rotary_emb.inv_freq"):  # the latter in old checkpoints
        return None
    match, scale = _LAYER.fullmatch(name), _CACHE_SCALE.fullmatch(name)
    upper = match is not None and int(match[1]) >= spec.num_key_value_layers
    if upper and match[2] in _TEACHER and not spec.own_key_values:
        return None
    if scale is not None:
        layer, kind = int(scale["layer"]), f"{scale['of']}_{scale['kind'] or 'scale'}"
        if layer < spec.num_key_value_layers or scale["of"] == "q":
            return (f"model.layers.{layer}.self_attn.attn.{kind}",)
        # Scales of keys and values belong to the cache, which the group's first layer owns.
        return (f"model.caches.owners.{spec.owners.index(layer)}.{kind}",) if layer in spec.owners else None
    if (expert := _EXPERT.fullmatch(name)) is not None and expert[3] in _STACKED_EXPERTS:
        stacked, shard = _STACKED_EXPERTS[expert[3]]
        target = f"{expert[1]}.routed_experts.{stacked}_{expert[4]}"
        return target, target, shard, int(expert[2])  # the loader tells kinds of tensors apart by the name
    if match is None:
        return (name,)
    layer, module, kind = int(match[1]), match[2], match[3]
    prefix = name[: name.index(f".{module}.{kind}")]
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
    stacked, *shard = _STACKED.get(module, (module,))
    return f"{prefix}.{stacked}.{kind}", *shard


def _share_cache_scales(parameters: dict[str, torch.nn.Parameter], spec: SwiftKVSpec) -> set[str]:
    """Copy each cache's scales to the layers that read it; return the names of those parameters."""
    shared = set()
    for layer in range(spec.num_key_value_layers, spec.num_hidden_layers):
        owner = f"model.caches.owners.{spec.owners.index(spec.owner(layer))}"
        for kind in ("k_scale", "v_scale"):
            reader = f"model.layers.{layer}.self_attn.attn.{kind}"
            if reader in parameters and f"{owner}.{kind}" in parameters:
                parameters[reader].data.copy_(parameters[f"{owner}.{kind}"].data)
                shared.add(reader)
    return shared


def _shapes(config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the required tensors of an unquantized checkpoint."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unneeded = tied | {f"{EARLY_EXIT_HEAD}weight"} | reference.teacher_projection_names()
    return {name: shape for name, shape in saved_shapes(reference).items() if name not in unneeded}


def _stored(plain: Iterable[str], parameters: Iterable[str], spec: SwiftKVSpec) -> set[str]:
    """Return the names of the required tensors of a quantized checkpoint, which replace each weight in vLLM's layers."""
    kinds: dict[str, set[str]] = {}
    for name in parameters:
        kind = _BEFORE_KIND.sub("", name)
        kinds.setdefault(name.removesuffix(kind), set()).add(kind)
    needed = set()
    for name in plain:
        module, _, kind = name.rpartition(".")
        place = _place(name, spec)
        assert place is not None  # `plain` has required tensors only
        own = {found for found in kinds.get(place[0].removesuffix(kind), ()) if _STORED.fullmatch(found)}
        needed |= {f"{module}.{found}" for found in own or {kind}} if kind == "weight" else {name}
    return needed


def _copy_heads(name: str, tensor: torch.Tensor, parameter: torch.nn.Parameter, heads: Heads) -> torch.Tensor:
    """Repeat each key/value head in the output dimension, if any, for all ranks that hold it."""
    outputs = getattr(parameter, "output_dim", None)
    if outputs is None:
        return tensor
    if tensor.size(outputs) % heads.total_key_value:
        raise UserError(
            f"tensor {name} has one number for several key/value heads, so its {heads.total_key_value} heads cannot be "
            f"copied to {heads.total_key_value * heads.copies} ranks; use --tensor-parallel-size {heads.total_key_value}"
        )
    per_head = tensor.unflatten(outputs, (heads.total_key_value, -1))
    return per_head.repeat_interleave(heads.copies, dim=outputs).flatten(outputs, outputs + 1)
