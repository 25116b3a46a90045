"""Attention of layers >= l, as the teacher's or with the student's queries and given keys and values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward, rotate_half

from swiftkv.models.configuration import layer_types, upper_key_value_heads
from swiftkv.spec import SwiftKVSpec

# RoPE tables: cosines and sines, or one complex tensor.
PositionEmbeddings = tuple[torch.Tensor, torch.Tensor] | torch.Tensor


class SwiftKVAttentionMixin:
    """Attention of a layer >= l; without `key_value` it is the teacher's.

    Subclasses override `finish_query` and `finish_key` if they apply more than RoPE, `project_query` and
    `project_key_value` if their projections are not q_proj, k_proj and v_proj.

    Attributes:
        query_projections: names of the modules that compute queries, in order; None in a model without the module.
        key_value_projections: names of the modules that compute keys and values.
        teacher_projections: names of the modules that the student replaces.
    """

    query_projections: ClassVar[tuple[str, ...]] = ("q_proj",)
    key_value_projections: ClassVar[tuple[str, ...]] = ("k_proj", "v_proj")

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        spec = SwiftKVSpec.from_config(config)
        sliding = layer_types(config)[layer_idx] == "sliding_attention"
        self.attention_arguments = {"sliding_window": config.sliding_window} if sliding else {}
        queries = () if spec.own_key_values else self.query_projections
        self.teacher_projections = () if spec.own_key_values else queries + self.key_value_projections
        for name in queries + (self.key_value_projections if layer_idx == spec.owner(layer_idx) else ()):
            if (module := getattr(self, name)) is None:
                continue
            if name in ("k_proj", "v_proj"):
                width = upper_key_value_heads(config) * self.head_dim
                module = nn.Linear(config.hidden_size, width, bias=module.bias is not None)
            setattr(self, f"{name}_swiftkv", copy.deepcopy(module))

    def finish_query(self, query: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """Apply RoPE to projected queries [B, T, heads, head size]."""
        return rotate(query, position_embeddings)

    def finish_key(self, key: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """Apply RoPE to projected keys [B, T, KV heads, head size]."""
        return rotate(key, position_embeddings)

    def project_key_value(
        self,
        states: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute keys (with RoPE) and values of the layer's group, and add them to the cache under this layer.

        Args:
            states: norm_swiftkv(h_l) [B, T, D].
            position_embeddings: RoPE tables [B, T, ...].
            past_key_values: KV cache or None.

        Returns:
            Keys and values [B, KV heads, cached + T, head size].
        """
        # The group may be on another GPU than layer l - 1.
        device = self.k_proj_swiftkv.weight.device
        states = states.to(device)
        position_embeddings = each_table(position_embeddings, lambda table: table.to(device))
        shape = (*states.shape[:-1], -1, self.head_dim)
        key = self.finish_key(self.k_proj_swiftkv(states).view(shape), position_embeddings).transpose(1, 2)
        value = self.v_proj_swiftkv(states).view(shape).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        return key, value

    def project_query(self, hidden_states: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """Compute the student's queries (with RoPE) [B, heads, T, head size] from normed states [B, T, D]."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        return self.finish_query(self.q_proj_swiftkv(hidden_states).view(shape), position_embeddings).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None = None,
        key_value: tuple[torch.Tensor, torch.Tensor] | OwnKeyValues | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As the architecture's attention; with the group's `key_value` as the student, with None as the teacher.

        `OwnKeyValues` are the teacher's cache: as `past_key_values`, transformers takes caches from layers it recomputes.
        """
        if key_value is None or isinstance(key_value, OwnKeyValues):
            self.num_key_value_groups = self.config.num_attention_heads // self.config.num_key_value_heads
            return super().forward(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values if key_value is None else key_value,
                **kwargs,
            )
        key, value = key_value
        query = self.project_query(hidden_states, position_embeddings)
        # Read by the attention functions; teacher and student may differ in KV heads.
        self.num_key_value_groups = query.shape[1] // key.shape[1]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **self.attention_arguments,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


class OwnKeyValues:
    """Replaces the cache of a layer with own_key_values: tokens at full depth keep the layer's own keys and values.

    The first `update` stores SingleInputKV's keys and values of all tokens [B, heads, T, size]; the second merges the
    layer's own with them and adds the result to `cache`. Without `cache` it may run again, as a recomputed layer does.

    Args:
        full_depth: tokens that run all layers, bool [B, T], or None.
        cache: KV cache or None.
    """

    def __init__(self, full_depth: torch.Tensor | None, cache: Cache | None) -> None:
        self.full_depth, self.cache = full_depth, cache
        self.shared: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key: torch.Tensor, value: torch.Tensor, *where: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As a cache's; the layer's own are of all T tokens or of the last.

        Raises:
            ValueError: several tokens and no `full_depth`.
        """
        own, shared, tokens = (key, value), self.shared, key.shape[2]
        if shared is None:
            self.shared = own
            return own
        if tokens < shared[0].shape[2]:
            own = tuple(torch.cat([all_[:, :, :-tokens], of], dim=2) for all_, of in zip(shared, own, strict=True))
        elif tokens > 1:
            if self.full_depth is None:
                raise ValueError("say which tokens run all layers, the answer's and the last of the prompt: full_depth")
            full = self.full_depth[:, None, :, None]
            own = tuple(torch.where(full, of, all_) for all_, of in zip(shared, own, strict=True))
        return own if self.cache is None else self.cache.update(*own, *where)


def each_table(
    position_embeddings: PositionEmbeddings, change: Callable[[torch.Tensor], torch.Tensor]
) -> PositionEmbeddings:
    """Apply `change` to every tensor of the position embeddings."""
    if isinstance(position_embeddings, torch.Tensor):
        return change(position_embeddings)
    return tuple(change(table) for table in position_embeddings)


def rotate(states: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
    """Apply RoPE to [B, T, heads, head size] with cosines and sines [B, T, head size]."""
    cos, sin = (table.unsqueeze(2) for table in position_embeddings)
    return states * cos + rotate_half(states) * sin


def sample_lengths(position_ids: torch.Tensor) -> list[int]:
    """Lengths of the samples in packed rows [B, T]; positions restart at 0, and no sample spans two rows."""
    starts = position_ids == 0
    starts[:, 0] = True
    edges = starts.flatten().nonzero().squeeze(-1)
    return torch.diff(edges, append=edges.new_tensor([position_ids.numel()])).tolist()
