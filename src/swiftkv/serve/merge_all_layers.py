"""Merge-all-Layers (Sec. 5.1): every layer computes keys and values, but only the first layer's are cached.

It measures the effect of a smaller cache alone; its answers are meaningless. Serve an ordinary checkpoint with
--hf-overrides '{"architectures": ["LlamaMergeAllLayersForCausalLM"]}'.
"""

from importlib import import_module
from typing import Any

from torch import nn
from vllm.config import VllmConfig

from swiftkv.architectures import ARCHITECTURES


class MergeAllLayersMixin(nn.Module):
    """Makes all layers of one of vLLM's language models share the first layer's cache."""

    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:  # vLLM inspects these names
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        first, *others = (layer.self_attn.attn for layer in self.model.layers)
        for attention in others:
            attention.kv_sharing_target_layer_name = first.layer_name
            attention.impl.kv_sharing_target_layer_name = first.layer_name


def __getattr__(name: str) -> type[MergeAllLayersMixin]:
    """Make the class that vLLM asks for by name, e.g. `Qwen2MergeAllLayersForCausalLM`."""
    for model_type, row in ARCHITECTURES.items():
        if name == f"{row.classes}MergeAllLayersForCausalLM":
            ordinary = getattr(import_module(f"vllm.model_executor.models.{model_type}"), f"{row.classes}ForCausalLM")
            made = type(name, (MergeAllLayersMixin, ordinary), {"__module__": __name__})
            return globals().setdefault(name, made)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
