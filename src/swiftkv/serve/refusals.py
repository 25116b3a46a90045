"""Refuse settings that would give a SwiftKV model wrong answers or are untested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm import envs
from vllm.config import CUDAGraphMode
from vllm.platforms import current_platform

from swiftkv.architectures import architecture, check_served
from swiftkv.errors import UserError
from swiftkv.models.configuration import layer_types, upper_key_value_heads

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import AttentionBackend

# KV connectors tested to restore the owners' caches. NixlConnector is NixlPullConnector.
CONNECTORS = {"ExampleConnector", "OffloadingConnector", "NixlConnector", "NixlPullConnector"}
# Speculation from token ids only, or, with Medusa, from the final states of sampled rows. Others read hidden states of prompt
# tokens, which skip layers, or, as draft models do, let vLLM run all prompt tokens through all layers.
DRAFTERS = {"ngram", "suffix", "custom_class", "medusa"}
# Cache types without scales or with one per layer; others keep scales beside the cache, which a layer that shares it
# overwrites or lacks (vLLM pull request 51091).
CACHE_TYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
# Attention backends that do not read the rows' starts on the host, to which vLLM copies them without synchronization
# (`make_kv_sharing_fast_prefill_common_attn_metadata`). For others they are known only with one row a request
# (`attention.noting`), so not with drafts.
DEVICE_STARTS = {"FlashAttentionBackend", "TritonAttentionBackend", "CPUAttentionBackend"}


def refuse_unsupported(vllm_config: VllmConfig, full_depth: bool) -> None:
    """Raise a `UserError` if the checkpoint or a setting is not supported in this mode."""
    check_served(vllm_config.model_config.hf_config.model_type)
    _refuse_checkpoint(vllm_config)
    _refuse_settings(vllm_config, full_depth)


def refuse_final(vllm_config: VllmConfig, backend: type[AttentionBackend]) -> None:
    """Raise a `UserError` for settings that vLLM decides later; called when the model is built.

    `backend` is the attention backend of layers >= l.
    """
    graphs, fast = vllm_config.compilation_config.cudagraph_mode, vllm_config.cache_config.kv_sharing_fast_prefill
    own = getattr(vllm_config.model_config.hf_config, "swiftkv_own_key_values", False)
    size = vllm_config.model_config.get_head_size()
    # vLLM's build for processors would fail at the first request.
    if not backend.supports_head_size(size):
        raise UserError(
            f"the attention backend {backend.get_name()} has no kernel for this model's heads of {size} elements"
        )
    if backend.forward_includes_kv_cache_update:
        raise UserError(
            f"the attention backend {backend.get_name()} cannot fill a cache without attending to it, which SwiftKV "
            "needs; choose another with --attention-backend (FLASH_ATTN, FLASHINFER and TRITON_ATTN can)"
        )
    # A graph of the whole model would fix the rows that run.
    if getattr(envs, "VLLM_USE_BREAKABLE_CUDAGRAPH", False) and graphs != CUDAGraphMode.NONE:
        raise UserError(
            "SwiftKV models do not support breakable CUDA graphs; set VLLM_USE_BREAKABLE_CUDAGRAPH=0 in the environment "
            "(VLLM_BATCH_INVARIANT=1 turns them on for some models)"
        )
    # The same with full graphs for any batch, which other settings may select.
    if fast and graphs.mixed_mode() == CUDAGraphMode.FULL:
        raise UserError(
            f"SwiftKV's fast prefill does not support cudagraph_mode {graphs.name}, which captures prompts and decoding in the "
            "same graphs (empty splitting_ops and fuse_attn_quant lead to it); add -cc.cudagraph_mode=FULL_DECODE_ONLY"
        )
    # A graph would write to the slots of the step that it was captured in.
    if (
        own
        and fast
        and graphs.mixed_mode() == CUDAGraphMode.PIECEWISE
        and not vllm_config.compilation_config.splitting_ops_contain_kv_cache_update()
    ):
        raise UserError(
            "SwiftKV models with swiftkv_own_key_values write caches between CUDA graphs, so splitting_ops has to contain "
            "vllm::unified_kv_cache_update, which is vLLM's default without use_inductor_graph_partition"
        )
    if fast and vllm_config.speculative_config is not None and backend.__name__ not in DEVICE_STARTS:
        raise UserError(
            f"speculation beside SwiftKV's fast prefill is not safe with the attention backend {backend.get_name()}, which "
            "may read how many drafts to verify before they are known; add --attention-backend FLASH_ATTN or TRITON_ATTN"
        )


def _refuse_checkpoint(vllm_config: VllmConfig) -> None:
    config = vllm_config.model_config.hf_config
    row = architecture(config.model_type)
    if not config.swiftkv:
        raise UserError(
            f"the config.json of {vllm_config.model_config.model} has swiftkv false, which means the teacher; "
            "serve the original model instead, or set it to true"
        )
    # vLLM's Qwen2 layers, which run below l, would all get the window.
    if len(set(layer_types(config))) > 1:
        raise UserError("SwiftKV models with a sliding window in some layers and not in others cannot be served")
    heads, ordinary = upper_key_value_heads(config), config.num_key_value_heads
    if ordinary % heads:
        raise UserError(
            f"a SwiftKV model with swiftkv_num_key_value_heads {heads} can be scored but not served: all caches in vLLM have "
            f"blocks of one size, so it has to divide num_key_value_heads {ordinary}"
        )
    size = config.hidden_size // config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or size
    if head_dim != size and not row.reads_head_dim:
        raise UserError(
            f"vLLM takes {size}, hidden_size / num_attention_heads, for {row.classes}'s head_dim {head_dim}"
        )


def _refuse_settings(vllm_config: VllmConfig, full_depth: bool) -> None:
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    speculation = vllm_config.speculative_config
    fewer_heads = upper_key_value_heads(model.hf_config) != model.hf_config.num_key_value_heads
    own = getattr(model.hf_config, "swiftkv_own_key_values", False)
    if own and full_depth:
        raise UserError(
            "with swiftkv_own_key_values every token at full depth is the original model; serve that instead"
        )
    if parallel.pipeline_parallel_size > 1:
        raise UserError("SwiftKV models do not support pipeline parallelism; use --tensor-parallel-size")
    if parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1:
        raise UserError(
            "SwiftKV models do not support context parallelism (--prefill-context-parallel-size, "
            "--decode-context-parallel-size); use --tensor-parallel-size"
        )
    if model.is_moe and (parallel.data_parallel_size > 1 or parallel.enable_expert_parallel):
        raise UserError(
            "SwiftKV models with experts do not support --data-parallel-size and --enable-expert-parallel, where each layer "
            "would have to run as many rows on all ranks; use --tensor-parallel-size"
        )
    if model.is_moe and model.quantization is not None and current_platform.is_cpu():
        raise UserError(
            f"experts quantized with {model.quantization} cannot be served on a processor, where vLLM has kernels for few forms "
            "of them; serve a checkpoint in 16 bits, or on a GPU"
        )
    if parallel.use_ubatching:
        raise UserError(
            "SwiftKV models do not support micro-batches or dual batch overlap (--ubatch-size, --enable-dbo)"
        )
    if model.runner_type != "generate":
        raise UserError(
            "SwiftKV models generate text and nothing else: --runner pooling and --convert would read final states of prompt "
            "tokens, which skip layers"
        )
    if model.enable_sleep_mode:
        raise UserError("SwiftKV models have not been tried with --enable-sleep-mode, so it is refused")
    if cache.kv_cache_dtype_skip_layers:
        raise UserError(
            "SwiftKV models share caches between layers, so --kv-cache-dtype-skip-layers "
            f"{' '.join(cache.kv_cache_dtype_skip_layers)} could give a layer another number format than its cache has"
        )
    if cache.cache_dtype not in CACHE_TYPES:
        raise UserError(
            f"SwiftKV models share caches between layers, which is not known to work with --kv-cache-dtype {cache.cache_dtype}; "
            f"choose one of {', '.join(CACHE_TYPES)}"
        )
    for connector in _connectors(vllm_config):
        if connector not in CONNECTORS:
            raise UserError(
                f"SwiftKV models are not known to work with the KV connector {connector}; tested are "
                f"{', '.join(sorted(CONNECTORS))}"
            )
        if own:
            raise UserError(f"SwiftKV models with swiftkv_own_key_values do not support KV connectors ({connector})")
        if fewer_heads:
            raise UserError(
                f"SwiftKV models with swiftkv_num_key_value_heads do not support KV connectors ({connector})"
            )
    if speculation is not None:
        if speculation.method == "ngram_gpu":
            raise UserError(
                "SwiftKV models have not been tried with ngram_gpu speculation, so it is refused; use ngram, which vLLM's second "
                "model runner drafts on the GPU as well"
            )
        if speculation.method not in DRAFTERS:
            raise UserError(
                f"SwiftKV models do not support {speculation.method} speculation, which needs states or caches of prompt tokens "
                "that skip layers; n-gram speculation works"
            )


def _connectors(vllm_config: VllmConfig) -> list[str]:
    """Names of the configured KV connectors, with their module if they are not vLLM's."""
    cache, transfer = vllm_config.cache_config, vllm_config.kv_transfer_config
    names = []
    if transfer is not None and transfer.kv_connector is not None:
        module = transfer.kv_connector_module_path
        names.append(f"{module}.{transfer.kv_connector}" if module else transfer.kv_connector)
    if cache.kv_offloading_size is not None:  # vLLM turns it into a connector later
        native = "SimpleCPUOffloadConnector" if envs.VLLM_USE_SIMPLE_KV_OFFLOAD else "OffloadingConnector"
        names.append(native if cache.kv_offloading_backend == "native" else "LMCacheMPConnector")
    return names
