"""Features of vLLM that the plugin needs; untested versions are accepted if they have them."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Feature:
    """A name in vLLM.

    Attributes:
        purpose: the reason that error messages give.
        module: module to import.
        name: name in the module, possibly dotted.
        parameter: a parameter that it must take, or None.
    """

    purpose: str
    module: str
    name: str
    parameter: str | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" + (f"({self.parameter}=...)" if self.parameter else "")

    def present(self) -> bool:
        """Whether the installed vLLM has it."""
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            return False
        return self.parameter is None or self.parameter in inspect.signature(found).parameters


_ATTENTION = "vllm.model_executor.layers.attention"
_BACKEND = "vllm.v1.attention.backend"
_CONFIG = "vllm.model_executor.models.config"
_PROCESSOR = "vllm.v1.sample.logits_processor"
FEATURES = (
    Feature("settings by architecture", _CONFIG, "MODELS_CONFIG_MAP"),
    Feature("settings by architecture", _CONFIG, "VerifyAndUpdateConfig.verify_and_update_config", "vllm_config"),
    Feature("skipping prompt tokens", "vllm.config", "CacheConfig", "kv_sharing_fast_prefill"),
    Feature("skipping prompt tokens", f"{_BACKEND}s.utils", "KVSharingFastPrefillMetadata"),
    Feature("caches shared by layers", _ATTENTION, "Attention.__init__", "kv_sharing_target_layer_name"),
    Feature("writing a cache without attention", f"{_ATTENTION}.attention", "unified_kv_cache_update", "layer_name"),
    Feature("writing a cache without attention", _BACKEND, "AttentionBackend.forward_includes_kv_cache_update"),
    Feature("announcing caches to KV connectors", f"{_ATTENTION}.kv_transfer_utils", "maybe_transfer_kv_layer"),
    Feature("two halves compiled apart", "vllm.compilation.decorators", "support_torch_compile", "dynamic_arg_dims"),
    Feature("two halves compiled apart", "vllm.compilation.backends", "set_model_tag"),
    Feature("refusing a request on arrival", _PROCESSOR, "LogitsProcessor.validate_params", "sampling_params"),
)


def absent_feature() -> Feature | None:
    """Return the first feature that the installed vLLM lacks, or None; takes seconds, as it imports the modules."""
    return next((feature for feature in FEATURES if not feature.present()), None)
