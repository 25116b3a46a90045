"""vLLM's hook for the settings of a SwiftKV model: fast prefill unless full depth is requested."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm import ModelRegistry
from vllm.config import CUDAGraphMode
from vllm.logger import init_logger
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from swiftkv.errors import UserError
from swiftkv.models.checkpoint import check_tensors
from swiftkv.serve.prompt_logprobs import batch_prompts
from swiftkv.serve.refusals import refuse_unsupported
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM shows "vllm.*" loggers only.
logger = init_logger("vllm.plugins.swiftkv")

FULL_DEPTH = "swiftkv_full_depth"
_ASK_FULL_DEPTH = f"--additional-config '{{\"{FULL_DEPTH}\": true}}'"


def is_ours(architecture: str) -> bool:
    """Return True if vLLM uses this plugin's model for an architecture; warn if another plugin registered its own."""
    registered = ModelRegistry.models.get(architecture)
    ours = getattr(registered, "module_name", None) == "swiftkv.serve.model"
    if not ours:
        logger.warning_once(
            "%s is served by the model of another plugin, which the SwiftKV plugin leaves alone; to serve it with this "
            "one, uninstall the other (arctic-inference has such a model)",
            architecture,
        )
    return ours


class SwiftKVSettings(VerifyAndUpdateConfig):
    """Called once before an engine starts."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """Choose the mode and check the tensors of a local checkpoint.

        Raises:
            UserError: the checkpoint or the settings cannot be served.
        """
        model = vllm_config.model_config
        if not is_ours(model.architecture):
            return
        spec = SwiftKVSpec.from_config(model.hf_config)
        full_depth = _asks_for_full_depth(vllm_config)
        refuse_unsupported(vllm_config, full_depth)
        if vllm_config.load_config.load_format != "dummy" and Path(model.model).is_dir():
            check_tensors(Path(model.model), model.hf_config)

        if full_depth and vllm_config.cache_config.kv_sharing_fast_prefill:
            raise UserError(f"--kv-sharing-fast-prefill and {FULL_DEPTH} exclude each other")
        # l = L: no layer skips prompt tokens.
        fast = not full_depth and bool(spec.groups)
        vllm_config.cache_config.kv_sharing_fast_prefill = fast
        batch_prompts(vllm_config).refused = fast
        if fast and vllm_config.compilation_config.cudagraph_mode == CUDAGraphMode.FULL:
            logger.warning("SwiftKV fast prefill: CUDA graphs are FULL for decode batches only, PIECEWISE for others")
            vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
        # It finds layers with experts by counting calls, some of which replayed graphs and skipped layers leave out.
        vllm_config.compilation_config.fast_moe_cold_start = False
        skipped = spec.num_hidden_layers - spec.num_key_value_layers
        logger.info(
            "SwiftKV: layers %d to %d read %d KV cache(s) made from layer %d's input; %s",
            spec.num_key_value_layers,
            spec.num_hidden_layers - 1,
            len(spec.groups),
            spec.num_key_value_layers,
            f"prompt tokens skip {skipped} layers (for prompt_logprobs, which that excludes, add {_ASK_FULL_DEPTH})"
            if fast
            else "every token runs at full depth",
        )


def _asks_for_full_depth(vllm_config: VllmConfig) -> bool:
    additional = vllm_config.additional_config
    value = additional.get(FULL_DEPTH, False) if isinstance(additional, dict) else False
    if not isinstance(value, bool):
        raise UserError(f"{FULL_DEPTH} in --additional-config is {value!r}, but must be true or false")
    return value
