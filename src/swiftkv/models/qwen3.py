"""What Qwen3 has of its own: queries and keys are normalised by head before RoPE, in the student by norms of its own."""

from typing import Any

import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from swiftkv.models.attention import PositionEmbeddings, SwiftKVAttentionMixin
from swiftkv.spec import SwiftKVSpec


class Attention(SwiftKVAttentionMixin):
    """See `SwiftKVAttentionMixin`."""

    query_projections = ("q_proj", "q_norm")
    key_value_projections = ("k_proj", "v_proj", "k_norm")

    def add_projections(self, config: Any, spec: SwiftKVSpec, owner: bool) -> None:
        """See `SwiftKVAttentionMixin`."""
        super().add_projections(config, spec, owner)
        self.q_norm_swiftkv = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if owner:
            self.k_norm_swiftkv = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def finish_query(self, query: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """See `SwiftKVAttentionMixin`."""
        return super().finish_query(self.q_norm_swiftkv(query), position_embeddings)

    def finish_key(self, key: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        """See `SwiftKVAttentionMixin`."""
        return super().finish_key(self.k_norm_swiftkv(key), position_embeddings)
