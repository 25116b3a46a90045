"""Merge-all-Layers (Sec. 5.1): every layer computes keys and values, but only the first layer's are cached.

It measures the effect of a smaller cache alone; its answers are meaningless. Serve an ordinary checkpoint with
--hf-overrides '{"architectures": ["LlamaMergeAllLayersForCausalLM"]}'.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention

from swiftkv.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from vllm.model_executor.models.llama import LlamaForCausalLM

    Base = LlamaForCausalLM  # any of vLLM's that has layers with `self_attn.attn`
else:
    Base = object


class MergeAllLayersMixin(Base):
    """Makes all layers share the first layer's cache."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:  # vLLM asks for these names
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        layers: Iterable[Any] = self.model.layers
        attentions: list[Attention] = [layer.self_attn.attn for layer in layers]
        first, *others = attentions
        for attention in others:
            attention.kv_sharing_target_layer_name = first.layer_name
            impl: Any = attention.impl
            impl.kv_sharing_target_layer_name = first.layer_name


def __getattr__(name: str) -> type[MergeAllLayersMixin]:
    """Make the class that vLLM asks for by name, e.g. `Qwen2MergeAllLayersForCausalLM`."""
    for model_type, row in ARCHITECTURES.items():
        if name == f"{row.classes}MergeAllLayersForCausalLM":
            ordinary = getattr(import_module(f"vllm.model_executor.models.{model_type}"), f"{row.classes}ForCausalLM")
            made = type(name, (MergeAllLayersMixin, ordinary), {"__module__": __name__})
            return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
