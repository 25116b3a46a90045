"""Attention of a layer >= l: the teacher's, or the student's with keys and values given from outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward, rotate_half

from swiftkv.models.configuration import layer_types
from swiftkv.spec import SwiftKVSpec

# RoPE of some positions as an architecture gives it: cosines and sines, or one complex tensor.
PositionEmbeddings = tuple[torch.Tensor, torch.Tensor] | torch.Tensor


class SwiftKVAttentionMixin:
    """Attention of a layer >= l; without `key_value` it is the teacher's.

    An architecture that does more to queries and keys than RoPE overrides `finish_query` and `finish_key`. One with other
    projections than q_proj, k_proj and v_proj names them and overrides `project_query` and `project_key_value`.

    Attributes:
        query_projections: modules that make the queries, in order; one that the model has none of is None.
        key_value_projections: modules that make keys and values.
    """

    query_projections: ClassVar[tuple[str, ...]] = ("q_proj",)
    key_value_projections: ClassVar[tuple[str, ...]] = ("k_proj", "v_proj")

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        spec = SwiftKVSpec.from_config(config)
        sliding = layer_types(config)[layer_idx] == "sliding_attention"
        self.attention_arguments = {"sliding_window": config.sliding_window} if sliding else {}
        self.add_projections(config, spec, owner=layer_idx == spec.owner(layer_idx))

    def add_projections(self, config: Any, spec: SwiftKVSpec, owner: bool) -> None:
        """Make the student's modules like the teacher's, those of keys and values if the layer is its group's `owner`."""
        queries = () if spec.own_key_values else self.query_projections
        for name in queries + (self.key_value_projections if owner else ()):
            if (module := getattr(self, name)) is None:
                continue
            if name in ("k_proj", "v_proj"):
                width = (spec.num_key_value_heads or config.num_key_value_heads) * self.head_dim
                module = nn.Linear(config.hidden_size, width, bias=module.bias is not None)
            setattr(self, f"{name}_swiftkv", copy.deepcopy(module))

    def finish_query(self, query: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """What projected queries [B, T, heads, head size] become before attention: here RoPE turns them."""
        return rotate(query, position_embeddings)

    def finish_key(self, key: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """What projected keys [B, T, KV heads, head size] become before the cache: here RoPE turns them."""
        return rotate(key, position_embeddings)

    def project_key_value(
        self,
        states: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (with RoPE) and values of this layer's whole group; the cache keeps them once, at this layer.

        Args:
            states: norm_swiftkv(h_l) [B, T, D].
            position_embeddings: RoPE of the positions [B, T, ...].
            past_key_values: the cache to add to and read from, or None.

        Returns:
            Keys and values [B, KV heads, cached + T, head size].
        """
        # A group may be on another GPU than the layer before l that its input comes from.
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
        """The student's queries (with RoPE) [B, heads, T, head size] of normed states [B, T, D]."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        return self.finish_query(self.q_proj_swiftkv(hidden_states).view(shape), position_embeddings).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: PositionEmbeddings,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None = None,
        key_value: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As the architecture's attention; `key_value` are the group's keys and values, None makes it the teacher."""
        if key_value is None:
            self.num_key_value_groups = self.config.num_attention_heads // self.config.num_key_value_heads
            return super().forward(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        key, value = key_value
        query = self.project_query(hidden_states, position_embeddings)
        # The attention functions read this attribute; teacher and student may differ in KV heads.
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


def each_table(
    position_embeddings: PositionEmbeddings, change: Callable[[torch.Tensor], torch.Tensor]
) -> PositionEmbeddings:
    """The position embeddings with every tensor of theirs changed."""
    if isinstance(position_embeddings, torch.Tensor):
        return change(position_embeddings)
    return tuple(change(table) for table in position_embeddings)


def rotate(states: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
    """RoPE of [B, T, heads, head size] by cosines and sines [B, T, head size]."""
    cos, sin = (table.unsqueeze(2) for table in position_embeddings)
    return states * cos + rotate_half(states) * sin


def sample_lengths(position_ids: torch.Tensor) -> list[int]:
    """Lengths of the samples of packed rows [B, T] in order; positions restart at 0 and rows never share a sample."""
    starts = position_ids == 0
    starts[:, 0] = True
    edges = starts.flatten().nonzero().squeeze(-1)
    return torch.diff(edges, append=edges.new_tensor([position_ids.numel()])).tolist()
