"""Merge-all-Layers (Sec. 5.1): every layer computes its keys and values, but only the first layer's are kept.

It shows what a smaller cache alone gives, without saving any computation. Its answers mean nothing. An ordinary
checkpoint is served so with --hf-overrides '{"architectures": ["LlamaMergeAllLayersForCausalLM"]}'.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

if TYPE_CHECKING:
    Base = LlamaForCausalLM  # any of vLLM's that has layers with `self_attn.attn`
else:
    Base = object


class MergeAllLayersMixin(Base):
    """Makes all layers share the cache of the first."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:  # vLLM asks for these names
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        layers: Iterable[Any] = self.model.layers
        attentions: list[Attention] = [layer.self_attn.attn for layer in layers]
        first, *others = attentions
        for attention in others:
            attention.kv_sharing_target_layer_name = first.layer_name
            impl: Any = attention.impl
            impl.kv_sharing_target_layer_name = first.layer_name


class LlamaMergeAllLayersForCausalLM(MergeAllLayersMixin, LlamaForCausalLM):
    """Llama with one KV cache for all layers."""


class MistralMergeAllLayersForCausalLM(MergeAllLayersMixin, MistralForCausalLM):
    """Mistral with one KV cache for all layers."""


class Qwen2MergeAllLayersForCausalLM(MergeAllLayersMixin, Qwen2ForCausalLM):
    """Qwen2 with one KV cache for all layers."""


class Qwen3MergeAllLayersForCausalLM(MergeAllLayersMixin, Qwen3ForCausalLM):
    """Qwen3 with one KV cache for all layers."""
