"""Layers >= l in vLLM: queries of their own, keys and values from the cache of their AcrossKV group."""

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
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.models.llama import LlamaMLP
from vllm.model_executor.utils import set_weight_attrs
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata, subclass_attention_backend
from vllm.v1.kv_cache_interface import KVCacheSpec

from swiftkv.architectures import architecture, has_bias
from swiftkv.serve.batch_prompts import batch_prompts
from swiftkv.spec import SwiftKVSpec


class Heads:
    """Head counts and sizes of this tensor-parallel rank.

    Attributes:
        head_dim: elements a head.
        query: query heads of this rank.
        key_value: SwiftKV key/value heads of this rank, at least 1.
        copies: ranks that hold the same key/value head, where there are fewer heads than ranks.
    """

    def __init__(self, config: Any, spec: SwiftKVSpec) -> None:
        ranks = get_tensor_model_parallel_world_size()
        total_kv = spec.num_key_value_heads or config.num_key_value_heads
        # The ordinary layers refuse head counts that do not divide; layers >= l may have counts of their own.
        if max(total_kv, ranks) % min(total_kv, ranks):
            raise ValueError(f"{total_kv} SwiftKV key/value heads cannot be spread over {ranks} ranks")
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.total_query = config.num_attention_heads
        self.query = self.total_query // ranks
        self.total_key_value = total_kv
        self.key_value = max(1, total_kv // ranks)
        self.copies = max(1, ranks // total_kv)


def sliding_window(config: Any, layer: int) -> int | None:
    """The layer's window where the configuration has one a layer; None leaves vLLM's model-wide setting."""
    types = getattr(config, "layer_types", None)
    return config.sliding_window if types and types[layer] == "sliding_attention" else None


def make_rope(config: Any, heads: Heads) -> nn.Module:
    """The model's rotary embedding; vLLM keeps one copy for all layers."""
    return get_rope(
        heads.head_dim,
        max_position=config.max_position_embeddings,
        rope_parameters=config.rope_parameters,
        is_neox_style=True,
    )


class CacheOwner(Attention):
    """An attention module that is never called: vLLM allocates a cache for it, which other layers read.

    vLLM shares caches only where all blocks have one size in bytes; a cache with fewer heads takes longer blocks.
    """

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """As any attention's, but with blocks of as many bytes as the layers < l have."""
        spec = super().get_kv_cache_spec(vllm_config)
        assert spec is not None  # as of any layer that decodes
        ordinary = vllm_config.model_config.get_num_kv_heads(vllm_config.parallel_config)
        return replace(spec, block_size=spec.block_size * ordinary // self.num_kv_heads)


class SwiftKVCaches(nn.Module):
    """Keys and values of all layers >= l: one GEMM (Sec. 3.5), and one cache for each AcrossKV group (Sec. 3.3).

    The owners are attention modules that are never called: vLLM allocates a cache for each, and the layers of its
    group name it as their target. They must be made before those layers.
    """

    def __init__(self, vllm_config: VllmConfig, spec: SwiftKVSpec, prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        row = architecture(config.model_type)
        self.heads = heads = Heads(config, spec)
        self.groups = len(spec.groups)
        size = heads.total_key_value * heads.copies * heads.head_dim
        # All keys, then all values, each by group: one rotary embedding call turns all keys.
        self.kv_proj_swiftkv = MergedColumnParallelLinear(
            config.hidden_size,
            [size] * (2 * self.groups),
            bias=has_bias(row.bias, config.to_dict()),
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.layers.{spec.num_key_value_layers}.self_attn.kv_proj_swiftkv",
        )
        self.rotary_emb = make_rope(config, heads)
        owners = [
            CacheOwner(
                heads.query,
                heads.head_dim,
                heads.head_dim**-0.5,
                num_kv_heads=heads.key_value,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                per_layer_sliding_window=sliding_window(config, layer),
                prefix=owner_name(prefix, layer),
            )
            for layer in spec.owners
        ]
        self.owners = nn.ModuleList(owners)
        self.backend = owners[0].attn_backend
        self.names = [owner.layer_name for owner in owners]
        self.k_norm_swiftkv = GroupNorms(self.groups, heads.head_dim, config.rms_norm_eps) if row.normalized else None

    def forward(self, positions: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Project and turn.

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
        """Write what `forward` returned into the caches, at the slots of this step; runs between the compiled halves."""
        shape = (-1, self.groups, self.heads.key_value, self.heads.head_dim)
        for name, key, value in zip(self.names, keys.view(shape).unbind(1), values.view(shape).unbind(1), strict=True):
            write_cache(key, value, name)


@maybe_transfer_kv_layer
def write_cache(keys: torch.Tensor, values: torch.Tensor, layer_name: str) -> None:
    """Write [tokens, key_value, head_dim] keys and values into the cache of the owner `layer_name`.

    vLLM announces a layer to a layer-wise KV connector where it attends; owners never do, so they are announced here:
    waited for before the write, saved after it.
    """
    unified_kv_cache_update(keys, values, layer_name)


@maybe_transfer_kv_layer
def announce(layer_name: str) -> None:
    """Announce a layer that reads a cache to a layer-wise KV connector, in a step in which it does not attend."""


def owner_name(prefix: str, layer: int) -> str:
    """vLLM's name of the cache that belongs to the group starting at `layer`."""
    return f"{prefix}.layers.{layer}.self_attn.swiftkv_cache"


class GroupNorms(nn.Module):
    """RMSNorms by head of the keys of all AcrossKV groups, each group with gains of its own."""

    def __init__(self, groups: int, head_dim: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(groups, 1, head_dim))
        set_weight_attrs(self.weight, {"weight_loader": self.load})
        self.epsilon = epsilon

    @staticmethod
    def load(parameter: nn.Parameter, tensor: torch.Tensor, group: int) -> None:
        """Place one group's gains [head size]."""
        parameter.data[group, 0].copy_(tensor)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Of [tokens, groups * key_value * head size], in float32, rounded before the gains as in Hugging Face."""
        groups, _, head_dim = self.weight.shape
        heads = keys.unflatten(-1, (groups, -1, head_dim)).float()
        heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.epsilon)
        return (heads.to(keys.dtype) * self.weight).flatten(1)


class ReaderAttention(Attention):
    """Attention that reads another layer's cache for rows with logits; the builder of its metadata notes each step."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        """As any attention's, but for the builder."""
        return noting(super().get_attn_backend())


@cache
def noting(backend: type[AttentionBackend]) -> type[AttentionBackend]:
    """A backend whose metadata are built as `backend`'s, after the lengths of requests are noted; see `BatchPrompts`."""

    class NotingBuilder(backend.get_builder_cls()):  # pyrefly: ignore [invalid-inheritance]
        def build(
            self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
        ) -> Any:
            batch_prompts(self.vllm_config).note(
                common_attn_metadata.seq_lens_cpu_upper_bound, common_attn_metadata.query_start_loc
            )
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

    return subclass_attention_backend("Noting", backend, NotingBuilder)


class WriterAttention(ReaderAttention):
    """A reader that first writes what its rows have of their own into the cache, over what the lower half wrote.

    vLLM's attention writes to no cache that it shares, so its two operations are called from here.
    """

    # Without the shape and dtype of other outputs, which only latent attention asks for.
    def forward(  # pyrefly: ignore [bad-override]
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Of [rows, heads * head_dim] each, the keys turned; the slots are the owner's in the forward context."""
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
            # The result of writing orders the two operations for the compiler.
            written = torch.ops.vllm.unified_kv_cache_update(key, value, _encode_layer_name(owner))
            torch.ops.vllm.unified_attention_with_output(
                turned, key, value, output, _encode_layer_name(self.layer_name), kv_cache_dummy_dep=written
            )
        return output.flatten(1)


class SwiftKVAttention(nn.Module):
    """Attention of a layer >= l: its own queries and output projection, its group's keys and values.

    With own_key_values the rows have keys and values of their own, too, and all projections are the model's.
    """

    def __init__(self, vllm_config: VllmConfig, spec: SwiftKVSpec, layer: int, model_prefix: str) -> None:
        super().__init__()
        config, quant_config = vllm_config.model_config.hf_config, vllm_config.quant_config
        row = architecture(config.model_type)
        prefix = f"{model_prefix}.layers.{layer}.self_attn"
        heads = Heads(config, spec)
        self.own, bias = spec.own_key_values, has_bias(row.bias, config.to_dict())
        if self.own:
            self.qkv_proj = QKVParallelLinear(
                config.hidden_size,
                heads.head_dim,
                heads.total_query,
                heads.total_key_value,
                bias=bias,
                quant_config=quant_config,
                prefix=f"{prefix}.qkv_proj",
            )
            self.sizes = [heads.query * heads.head_dim] + 2 * [heads.key_value * heads.head_dim]
        else:
            self.q_proj_swiftkv = ColumnParallelLinear(
                config.hidden_size,
                heads.total_query * heads.head_dim,
                bias=bias,
                quant_config=quant_config,
                prefix=f"{prefix}.q_proj_swiftkv",
            )
        for name in ("q_norm", "k_norm") if self.own else ("q_norm_swiftkv",):
            setattr(self, name, RMSNorm(heads.head_dim, eps=config.rms_norm_eps) if row.normalized else None)
        self.head_dim = heads.head_dim
        self.o_proj = RowParallelLinear(
            heads.total_query * heads.head_dim,
            config.hidden_size,
            bias=has_bias(row.output_bias, config.to_dict()),
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self.rotary_emb = make_rope(config, heads)
        fast = vllm_config.cache_config.kv_sharing_fast_prefill
        self.attn = (WriterAttention if self.own else ReaderAttention if fast else Attention)(
            heads.query,
            heads.head_dim,
            heads.head_dim**-0.5,
            num_kv_heads=heads.key_value,
            cache_config=vllm_config.cache_config,
            quant_config=quant_config,
            per_layer_sliding_window=sliding_window(config, layer),
            prefix=f"{prefix}.attn",
            kv_sharing_target_layer_name=owner_name(model_prefix, spec.owner(layer)),
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Attend from [rows, hidden] normed states to the group's cache; [rows, hidden]."""
        if self.own:
            query, key, value = self.qkv_proj(hidden_states)[0].split(self.sizes, dim=-1)
            query, key = self._by_head("q_norm", query), self._by_head("k_norm", key)
            query, key = self.rotary_emb(positions, query, key)
        else:
            query, key, value = self._by_head("q_norm_swiftkv", self.q_proj_swiftkv(hidden_states)[0]), None, None
            query, _ = self.rotary_emb(positions, query, None)
        output, _ = self.o_proj(self.attn(query, key, value))
        return output

    def _by_head(self, name: str, states: torch.Tensor) -> torch.Tensor:
        """The norm `name` of each head of [rows, heads * head_dim], if there is one."""
        norm = getattr(self, name)
        return states if norm is None else norm(states.unflatten(-1, (-1, self.head_dim))).flatten(1)


class SwiftKVDecoderLayer(nn.Module):
    """A layer >= l; norms and MLP are the original model's."""

    def __init__(self, vllm_config: VllmConfig, spec: SwiftKVSpec, layer: int, model_prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.self_attn = SwiftKVAttention(vllm_config, spec, layer, model_prefix)
        self.mlp = LlamaMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=vllm_config.quant_config,
            bias=getattr(config, "mlp_bias", False),
            prefix=f"{model_prefix}.layers.{layer}.mlp",
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer on [rows, hidden]; the residual stream is `hidden_states + residual`, added in the next norm."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual
