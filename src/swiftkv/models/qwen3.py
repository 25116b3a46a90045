"""SwiftKV for Qwen3, whose queries and keys are normalised by head before RoPE."""

from typing import Any

import torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3ForCausalLM, Qwen3Model, Qwen3RMSNorm

from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin
from swiftkv.spec import SwiftKVSpec


class Qwen3SwiftKVConfig(SwiftKVConfigMixin, Qwen3Config):
    """`Qwen3Config` with the SwiftKV fields."""

    model_type = "qwen3_swiftkv"


class Qwen3SwiftKVAttention(SwiftKVAttentionMixin, Qwen3Attention):
    """Attention of a Qwen3 layer >= l, as teacher or as student; the student has norms of its own."""

    query_projections = ("q_proj", "q_norm")
    key_value_projections = ("k_proj", "v_proj", "k_norm")

    def add_projections(self, config: Any, spec: SwiftKVSpec, owner: bool) -> None:
        """See `SwiftKVAttentionMixin`."""
        super().add_projections(config, spec, owner)
        self.q_norm_swiftkv = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if owner:
            self.k_norm_swiftkv = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def normed_query(self, query: torch.Tensor) -> torch.Tensor:
        """Of [B, T, heads, head size], by head."""
        return self.q_norm_swiftkv(query)

    def normed_key(self, key: torch.Tensor) -> torch.Tensor:
        """Of [B, T, KV heads, head size], by head."""
        return self.k_norm_swiftkv(key)


class Qwen3SwiftKVModel(SwiftKVModelMixin, Qwen3Model):
    """Qwen3 decoder with SwiftKV from layer l on."""

    config: Qwen3SwiftKVConfig
    attention_class = Qwen3SwiftKVAttention
    norm_class = Qwen3RMSNorm


class Qwen3SwiftKVForCausalLM(SwiftKVCausalLMMixin, Qwen3ForCausalLM):
    """Qwen3 language model with SwiftKV from layer l on."""

    config: Qwen3SwiftKVConfig
    model_class = Qwen3SwiftKVModel
