"""Layers >= l in vLLM: own queries, keys and values from the cache of the AcrossKV group."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention.attention import (
    _encode_layer_name,
    unified_attention_with_output,
    unified_kv_cache_update,
)
from vllm.model_executor.layers.attention.kv_transfer_utils import maybe_transfer_kv_layer
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear
from vllm.model_executor.utils import set_weight_attrs
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata, subclass_attention_backend
from vllm.v1.kv_cache_interface import KVCacheSpec

from swiftkv.architectures import architecture, has_bias
from swiftkv.models.configuration import upper_key_value_heads
from swiftkv.serve.prompt_logprobs import batch_prompts
from swiftkv.spec import SwiftKVSpec


class Heads:
    """Head counts and sizes of this tensor-parallel rank.

    Attributes:
        head_dim: elements a head.
        query: query heads of this rank.
        key_value: SwiftKV key/value heads of this rank, at least 1.
        copies: ranks that hold the same key/value head if there are fewer heads than ranks, else 1.
    """

    def __init__(self, config: Any) -> None:
        ranks = get_tensor_model_parallel_world_size()
        total_kv = upper_key_value_heads(config)
        # The ordinary layers refuse head counts that do not divide; layers >= l may have counts of their own.
        if max(total_kv, ranks) % min(total_kv, ranks):
            raise ValueError(f"{total_kv} SwiftKV key/value heads cannot be spread over {ranks} ranks")
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.query = config.num_attention_heads // ranks
        self.total_key_value = total_kv
        self.key_value = max(1, total_kv // ranks)
        self.copies = max(1, ranks // total_kv)


def make_attention(
    kind: type[Attention], vllm_config: VllmConfig, heads: Heads, layer: int, prefix: str, target: str | None = None
) -> Attention:
    """Make an attention module of a layer; `target` names the owner of the cache it reads, None its own."""
    config = vllm_config.model_config.hf_config
    types = getattr(config, "layer_types", None)
    return kind(
        heads.query,
        heads.head_dim,
        heads.head_dim**-0.5,
        num_kv_heads=heads.key_value,
        cache_config=vllm_config.cache_config,
        quant_config=vllm_config.quant_config,
        # None leaves vLLM's model-wide setting.
        per_layer_sliding_window=config.sliding_window if types and types[layer] == "sliding_attention" else None,
        prefix=prefix,
        kv_sharing_target_layer_name=target,
    )


class CacheOwner(Attention):
    """An attention module that is never called: vLLM allocates a cache for it, which other layers read.

    In vLLM layers share caches only if all blocks have the same bytes; a cache with fewer heads has longer blocks.
    """

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """As `Attention`'s, with blocks of as many bytes as those of layers < l."""
        spec = super().get_kv_cache_spec(vllm_config)
        assert spec is not None  # None for encoders only
        ordinary = vllm_config.model_config.get_num_kv_heads(vllm_config.parallel_config)
        return replace(spec, block_size=spec.block_size * ordinary // self.num_kv_heads)


class SwiftKVCaches(nn.Module):
    """Keys and values of all layers >= l: one GEMM (Sec. 3.5), and one cache per AcrossKV group (Sec. 3.3).

    Create it before the layers >= l, which name its `CacheOwner`s as targets. `rotary_emb` is the model's.
    """

    def __init__(self, vllm_config: VllmConfig, spec: SwiftKVSpec, prefix: str, rotary_emb: nn.Module) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        row = architecture(config.model_type)
        self.heads = heads = Heads(config)
        self.groups = len(spec.groups)
        size = heads.total_key_value * heads.copies * heads.head_dim
        # All keys, then all values, so that one call of the rotary embedding turns all keys.
        self.kv_proj_swiftkv = MergedColumnParallelLinear(
            config.hidden_size,
            [size] * (2 * self.groups),
            bias=has_bias(row.bias, config.to_dict()),
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.layers.{spec.num_key_value_layers}.self_attn.kv_proj_swiftkv",
        )
        self.rotary_emb = rotary_emb
        owners = [
            make_attention(CacheOwner, vllm_config, heads, layer, owner_name(prefix, layer)) for layer in spec.owners
        ]
        self.owners = nn.ModuleList(owners)
        self.backend = owners[0].attn_backend
        self.names = [owner.layer_name for owner in owners]
        self.k_norm_swiftkv = GroupNorms(self.groups, heads.head_dim, config.rms_norm_eps) if row.normalized else None

    def forward(self, positions: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute keys (with RoPE) and values of all groups.

        Args:
            positions: [tokens], int64.
            states: norm_swiftkv of the residual stream entering layer l, [tokens, hidden].

        Returns:
            Keys and values, each [tokens, groups * key_value * head_dim].
        """
        projected, _ = self.kv_proj_swiftkv(states)
        keys, values = projected.chunk(2, dim=-1)
        if self.k_norm_swiftkv is not None:
            keys = self.k_norm_swiftkv(keys)
        keys, _ = self.rotary_emb(positions, keys, None)
        return keys, values

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the result of `forward` into the caches, at the slots of this step; runs between the compiled halves."""
        shape = (-1, self.groups, self.heads.key_value, self.heads.head_dim)
        for name, key, value in zip(self.names, keys.view(shape).unbind(1), values.view(shape).unbind(1), strict=True):
            write_cache(key, value, name)


@maybe_transfer_kv_layer
def write_cache(keys: torch.Tensor, values: torch.Tensor, layer_name: str) -> None:
    """Write keys and values [tokens, key_value, head_dim] into the cache of the owner `layer_name`.

    vLLM announces a layer to a layer-wise KV connector when it attends. Owners never do, so the decorator announces them.
    """
    unified_kv_cache_update(keys, values, layer_name)


@maybe_transfer_kv_layer
def announce(layer_name: str) -> None:
    """Announce a layer that reads a cache to a layer-wise KV connector, in a step in which it does not attend."""


def owner_name(prefix: str, layer: int) -> str:
    """Name in vLLM of the cache of the group that starts at `layer`."""
    return f"{prefix}.layers.{layer}.self_attn.swiftkv_cache"


class GroupNorms(nn.Module):
    """RMSNorm by head of the keys of all AcrossKV groups, with weights per group."""

    def __init__(self, groups: int, head_dim: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(groups, 1, head_dim))
        set_weight_attrs(self.weight, {"weight_loader": self.load})
        self.epsilon = epsilon

    @staticmethod
    def load(parameter: nn.Parameter, tensor: torch.Tensor, group: int) -> None:
        """Load one group's weights [head size]."""
        parameter.data[group, 0].copy_(tensor)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Normalize [tokens, groups * key_value * head size] in float32, rounded before the weights as in Hugging Face."""
        groups, _, head_dim = self.weight.shape
        heads = keys.unflatten(-1, (groups, -1, head_dim)).float()
        heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.epsilon)
        return (heads.to(keys.dtype) * self.weight).flatten(1)


class ReaderAttention(Attention):
    """Attention that reads another layer's cache with fast prefill; its metadata builder notes each step."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        """As `Attention`'s, with another builder."""
        return noting(super().get_attn_backend())


@cache
def noting(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """Make a subclass of `backend` that notes the lengths of requests in `BatchPrompts` when it builds metadata, with starts on
    the host that are exact."""

    class NotingBuilder(backend.get_builder_cls()):  # pyrefly: ignore [invalid-inheritance]
        def build(
            self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
        ) -> Any:
            batch_prompts(self.vllm_config).note(
                common_attn_metadata.seq_lens_cpu_upper_bound, common_attn_metadata.query_start_loc
            )
            requests = common_attn_metadata.num_reqs
            # Rows of fast prefill, fewer than slots: the GPU's copy of their starts may not have arrived, but with one row a
            # request they are known.
            if (
                common_attn_metadata.max_query_len == 1
                and common_attn_metadata.num_actual_tokens == requests < common_attn_metadata.slot_mapping.size(0)
            ):
                common_attn_metadata.query_start_loc_cpu = torch.arange(requests + 1, dtype=torch.int32)
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

    return subclass_attention_backend("Noting", backend, NotingBuilder)


class WriterAttention(ReaderAttention):
    """A reader that first overwrites its rows' keys and values in the cache (own_key_values).

    vLLM's attention does not write to shared caches, so its two operations are called here.
    """

    def forward(  # pyrefly: ignore [bad-override]
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attend with [rows, heads * head_dim] each, after RoPE; slots are the owner's in the forward context."""
        if self.query_quant is not None and self.impl.supports_quant_query_input:
            turned, _ = self.query_quant(query, self._q_scale)
        else:
            turned = query
        owner = self.kv_sharing_target_layer_name
        assert owner is not None
        key, value = key.view(-1, self.num_kv_heads, self.head_size), value.view(-1, self.num_kv_heads, self.head_size)
        turned = turned.view(-1, self.num_heads, self.head_size)
        output = torch.empty_like(query).view(turned.shape)
        if self.use_direct_call:
            written = unified_kv_cache_update(key, value, owner)
            unified_attention_with_output(turned, key, value, output, self.layer_name, kv_cache_dummy_dep=written)
        else:
            # Passing on the result orders the two operations for the compiler.
            written = torch.ops.vllm.unified_kv_cache_update(key, value, _encode_layer_name(owner))
            torch.ops.vllm.unified_attention_with_output(
                turned, key, value, output, _encode_layer_name(self.layer_name), kv_cache_dummy_dep=written
            )
        return output.flatten(1)


def make_reader(vllm_config: VllmConfig, spec: SwiftKVSpec, layer: int, model_prefix: str) -> Attention:
    """Make the attention module of a layer >= l, which reads its group's cache."""
    fast = vllm_config.cache_config.kv_sharing_fast_prefill
    kind = WriterAttention if spec.own_key_values else ReaderAttention if fast else Attention
    heads, prefix = Heads(vllm_config.model_config.hf_config), f"{model_prefix}.layers.{layer}.self_attn.attn"
    return make_attention(kind, vllm_config, heads, layer, prefix, owner_name(model_prefix, spec.owner(layer)))


class SwiftKVAttention(nn.Module):
    """Attention of a layer >= l: own queries, the group's keys and values, the original model's output projection."""

    def __init__(
        self, original: Any, vllm_config: VllmConfig, spec: SwiftKVSpec, layer: int, model_prefix: str
    ) -> None:
        """`original` is the attention of vLLM's layer."""
        super().__init__()
        config = vllm_config.model_config.hf_config
        row, heads = architecture(config.model_type), Heads(config)
        self.q_proj_swiftkv = ColumnParallelLinear(
            config.hidden_size,
            config.num_attention_heads * heads.head_dim,
            bias=has_bias(row.bias, config.to_dict()),
            quant_config=vllm_config.quant_config,
            prefix=f"{model_prefix}.layers.{layer}.self_attn.q_proj_swiftkv",
        )
        self.q_norm_swiftkv = RMSNorm(heads.head_dim, eps=config.rms_norm_eps) if row.normalized else None
        self.o_proj, self.rotary_emb = original.o_proj, original.rotary_emb
        self.attn = make_reader(vllm_config, spec, layer, model_prefix)
        self.head_dim = heads.head_dim

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Attend to the group's cache with normed states [rows, hidden]."""
        query, _ = self.q_proj_swiftkv(hidden_states)
        if self.q_norm_swiftkv is not None:
            query = self.q_norm_swiftkv(query.unflatten(-1, (-1, self.head_dim))).flatten(1)
        query, _ = self.rotary_emb(positions, query, None)
        output, _ = self.o_proj(self.attn(query, None, None))
        return output


def rewire_layer(original: Any, vllm_config: VllmConfig, spec: SwiftKVSpec, layer: int, model_prefix: str) -> nn.Module:
    """Make one of vLLM's decoder layers read its group's cache.

    Norms and MLP or experts stay the model's own, with own_key_values all projections too.
    """
    # The new module of attention takes the old one's name.
    del vllm_config.compilation_config.static_forward_context[original.self_attn.attn.layer_name]
    if spec.own_key_values:
        original.self_attn.attn = make_reader(vllm_config, spec, layer, model_prefix)
    else:
        original.self_attn = SwiftKVAttention(original.self_attn, vllm_config, spec, layer, model_prefix)
    return original
