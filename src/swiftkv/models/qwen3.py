"""SwiftKV for Qwen3: queries and keys are normalized by head before RoPE, the student's by norms of its own."""

import torch

from swiftkv.models.attention import PositionEmbeddings, SwiftKVAttentionMixin


class Attention(SwiftKVAttentionMixin):
    query_projections = ("q_proj", "q_norm")
    key_value_projections = ("k_proj", "v_proj", "k_norm")

    def finish_query(self, query: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        return super().finish_query(self.q_norm_swiftkv(query), position_embeddings)

    def finish_key(self, key: torch.Tensor, position_embeddings: PositionEmbeddings) -> torch.Tensor:
        return super().finish_key(self.k_norm_swiftkv(key), position_embeddings)
