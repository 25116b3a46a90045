"""SwiftKV for DeepSeek-V2: latent attention, which expands one small latent into the keys and values of all heads.

A layer >= l computes its latent and the rotary key that its heads share from s = norm_swiftkv(h_l):
    [c k_R] = kv_a_proj_with_mqa_swiftkv(s),   [K_C V] = kv_b_proj_swiftkv(kv_a_layernorm_swiftkv(c)),   K = [K_C RoPE(k_R)]
Layers of an AcrossKV group share all three modules of the first one. As transformers' DeepSeek-V2 does, the KV cache
keeps the normed latent and RoPE(k_R), not keys and values. Experts stay the model's own.
"""

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import MoeModelOutputWithPast

from swiftkv.models.attention import PositionEmbeddings, SwiftKVAttentionMixin, each_table
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


class Attention(SwiftKVAttentionMixin):
    query_projections = ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj")  # a model has the first or the other three
    key_value_projections = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")

    def project_query(self, hidden_states: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        if self.q_lora_rank is None:
            query = self.q_proj_swiftkv(hidden_states)
        else:
            query = self.q_b_proj_swiftkv(self.q_a_layernorm_swiftkv(self.q_a_proj_swiftkv(hidden_states)))
        query = query.unflatten(-1, (self.num_heads, self.qk_head_dim)).transpose(1, 2)
        content, rotary = query.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        return torch.cat([content, _rotate(rotary, position_embeddings)], dim=-1)

    def project_key_value(
        self, states: torch.Tensor, position_embeddings: PositionEmbeddings, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `SwiftKVAttentionMixin`; the cache holds the latent and the rotary key.

        Args:
            states: norm_swiftkv(h_l) [B, T, D].
            position_embeddings: complex [B, T, rotary size / 2].
            past_key_values: KV cache or None.

        Returns:
            Keys [B, heads, cached + T, content size + rotary size] and values [B, heads, cached + T, value size].
        """
        device = self.kv_b_proj_swiftkv.weight.device
        position_embeddings = each_table(position_embeddings, lambda table: table.to(device))
        projected = self.kv_a_proj_with_mqa_swiftkv(states.to(device))
        latent, rotary = projected.unsqueeze(1).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        latent, rotary = self.kv_a_layernorm_swiftkv(latent), _rotate(rotary, position_embeddings)
        if past_key_values is not None:
            latent, rotary = past_key_values.update(latent, rotary, self.layer_idx)
        expanded = self.kv_b_proj_swiftkv(latent.squeeze(1)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        content, value = expanded.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        return torch.cat([content, rotary.expand(-1, self.num_heads, -1, -1)], dim=-1), value


class _Experts:
    """Lets transformers choose how experts are computed; it would look into the text of the class's module otherwise."""

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True


class Model(_Experts, SwiftKVModelMixin):
    """See `SwiftKVModelMixin`."""

    output_class = MoeModelOutputWithPast


class CausalLM(_Experts, SwiftKVCausalLMMixin):
    """See `SwiftKVCausalLMMixin`."""


def _rotate(states: torch.Tensor, position_embeddings: torch.Tensor) -> torch.Tensor:
    """Apply RoPE to [B, heads, T, rotary size], neighboring elements as one complex number, in float32."""
    pairs = torch.view_as_complex(states.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * position_embeddings.unsqueeze(1)).flatten(-2).type_as(states)
