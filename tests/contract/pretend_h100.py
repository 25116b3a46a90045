"""Print as JSON what vLLM's CUDA build and the plugin choose on a machine with four H100, on a machine without one.

    python tests/contract/pretend_h100.py

NVML and `torch.cuda` give made-up answers, models of Llama-3.1-8B's shape are made on the meta device, and attention metadata
is built from tensors on the processor. No kernel runs: what is proved is which branches are taken, not speed or numerics.
"""

import ctypes
import json
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch

from swiftkv.models.rewire import swiftkv_config
from swiftkv.spec import SwiftKVSpec

SHAPE = Path(__file__).parents[2] / "resources/architectures/llama-3.1-8b.json"
GPUS, NAME, MEMORY = 4, "NVIDIA H100 80GB HBM3", 80 << 30
HALF = SwiftKVSpec(32, 16)
# Variants and vLLM's settings.
CASES = {
    "plain": (HALF, {}),
    "across": (replace(HALF, key_value_group_size=4), {"kv_cache_dtype": "fp8"}),
    "eager": (HALF, {"enforce_eager": True}),
    "own": (replace(HALF, own_key_values=True), {}),
    "parallel": (HALF, {"tensor_parallel_size": GPUS}),
}
QUERIES = np.array([500, 1, 1], dtype=np.int32)  # tokens of a step: a prompt's, and of two requests that decode
COMPUTED = np.array([0, 700, 90], dtype=np.int32)  # tokens of each request before it
CPU = torch.device("cpu")


def load_driver(folder):
    """Load libcuda.so.1, which vLLM's libraries are linked with, or a library in which each function they call fails."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError:
        nm = ["nm", "-D", "--undefined-only", *Path(find_spec("vllm").origin).parent.rglob("*.so")]
        names = set(
            re.findall(r" (cu[A-Z]\w+)", subprocess.run(nm, stdout=subprocess.PIPE, text=True, check=True).stdout)
        )
        source, library = Path(folder, "cuda.c"), Path(folder, "libcuda.so.1")
        source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in names))
        linked = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
        subprocess.run([os.environ.get("CC", "gcc"), *linked], check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def pretend():
    """Make NVML and `torch.cuda` describe H100s; before anything asks for vLLM's platform."""
    properties = SimpleNamespace(
        name=NAME, major=9, minor=0, total_memory=MEMORY, multi_processor_count=132, warp_size=32,
        shared_memory_per_block_optin=232_448, is_integrated=False,
    )  # fmt: skip
    answers = dict(
        is_available=True, device_count=GPUS, current_device=0, set_device=None, get_device_capability=(9, 0),
        get_device_properties=properties, get_device_name=NAME, mem_get_info=(MEMORY, MEMORY), is_bf16_supported=True,
        _device_count_nvml=GPUS, _raw_device_count_nvml=GPUS,
    )  # fmt: skip
    _answer(torch.cuda, answers)
    import vllm.third_party.pynvml as nvml

    _answer(nvml, dict(
        nvmlInit=None, nvmlShutdown=None, nvmlDeviceGetCount=GPUS, nvmlDeviceGetHandleByIndex=0, nvmlDeviceGetUUID="GPU-0",
        nvmlDeviceGetCudaComputeCapability=(9, 0), nvmlDeviceGetName=NAME, nvmlDeviceGetP2PStatus=nvml.NVML_P2P_STATUS_OK,
        nvmlDeviceGetMemoryInfo=SimpleNamespace(total=MEMORY, free=MEMORY, used=0),
    ))  # fmt: skip
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda function: function()  # nothing is pretended in another process


def _answer(module, answers):
    """Replace functions of a module by ones that return what `answers` has for their names."""
    for name, value in answers.items():
        setattr(module, name, lambda *arguments, _value=value, **named: _value)


def engine_config(folder, spec, settings):
    from vllm.engine.arg_utils import EngineArgs

    model = Path(tempfile.mkdtemp(dir=folder))
    swiftkv_config(json.loads(SHAPE.read_text())["config"], spec).save_pretrained(model)
    sizes = dict(max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=20_000)
    return EngineArgs(
        str(model), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, **sizes, **settings
    ).create_engine_config()


def chosen(config):
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec, init_attn_backend
    from vllm.v1.worker.worker_base import WorkerBase

    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
        model = initialize_model(config)
    attention = [layer.self_attn.attn for layer in model.model.layers]
    specs = get_kv_cache_spec(config)
    layouts = WorkerBase.get_supported_kv_cache_layouts(SimpleNamespace(vllm_config=config))
    resolve_kv_cache_layout(config, [layouts], specs.values())
    (caches,) = get_kv_cache_configs(config, [specs], [40 << 30])
    groups, support, _ = init_attn_backend(caches, config, CPU)
    compilation, sizes = config.compilation_config, config.compilation_config.cudagraph_capture_sizes
    return {
        "runner": 2 if config.use_v2_model_runner else 1,
        "fast_prefill": config.cache_config.kv_sharing_fast_prefill,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "graphs": [compilation.cudagraph_mode.name, len(sizes), max(sizes, default=0)],
        "graph_support": support.min_cg_support.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kv_projection": list(model.model.caches.kv_proj_swiftkv.weight.shape),
        "backends": sorted({layer.attn_backend.get_name() for layer in attention}),
        "flash_attention": sorted({layer.impl.vllm_flash_attn_version for layer in attention}),
        "forward_writes": any(layer.attn_backend.forward_includes_kv_cache_update for layer in attention),
        "queries_quantized": all(layer.query_quant is not None for layer in attention),
        "caches": len(specs),
        "cache_bytes": sorted({spec.page_size_bytes // spec.block_size for spec in specs.values()}),
        "cache_groups": len(groups),
        "attention_groups": [[group.backend.__name__, len(group.layer_names)] for group in groups[0]],
        "step": step(config, model, caches, groups),
    }


def step(config, model, caches, groups):
    """Return what the second runner makes of the mixed step, without the kernel that plans FlashAttention's work.

    Metadata of the lower and the upper half: tokens, the most of a request, first rows of requests, and splits at most.
    """
    from vllm.v1.worker.gpu.attn_utils import FastPrefillHelper
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    requests, tokens = len(QUERIES), int(QUERIES.sum())
    manager = CudaGraphManager(config, CPU, config.compilation_config.cudagraph_mode, decode_query_len=1)
    manager._graphs_captured = True
    dispatched = manager.dispatch(requests, tokens, uniform_token_count=None, num_active_loras=0)
    starts = np.concatenate([[0], QUERIES.cumsum(dtype=np.int32)], dtype=np.int32)
    batch = replace(
        InputBatch.make_dummy(requests, tokens, InputBuffers(requests, tokens, CPU)),
        num_scheduled_tokens=QUERIES,
        query_start_loc=torch.from_numpy(starts),
        query_start_loc_np=starts,
        seq_lens=torch.from_numpy(COMPUTED + QUERIES),
        seq_lens_cpu_upper_bound=torch.from_numpy(COMPUTED + QUERIES),
        num_computed_tokens_np=COMPUTED,
        prefill_len_np=np.where(COMPUTED, COMPUTED, QUERIES),
        num_computed_prefill_tokens_np=COMPUTED,
        is_prefilling_np=COMPUTED == 0,
        fast_prefill=FastPrefillHelper(manager, tokens).prepare(
            torch.from_numpy(starts[1:] - 1), requests, np.arange(requests + 1), True, dispatched
        ),
    )
    state, planned = model.get_model_state_cls()(config, model, None, CPU), []

    def plan(**named):
        planned.append(named)
        return torch.zeros(1, dtype=torch.int32)

    with patch("vllm.v1.attention.backends.flash_attn.get_scheduler_metadata", plan):
        metadata = state.prepare_attn(
            batch, dispatched.cg_mode, (torch.zeros(requests, 2000, dtype=torch.int32),),
            torch.zeros(1, tokens, dtype=torch.int64), groups, caches,
        )  # fmt: skip
    halves = {"lower": metadata["model.layers.0.self_attn.attn"], "upper": metadata[model.model.last_attention]}
    return {
        "dispatched": [dispatched.cg_mode.name, dispatched.num_tokens],
        "rows": halves["upper"].logits_indices_padded.tolist(),
        "planned_in": sorted({str(named["qkv_dtype"]) for named in planned}),
    } | {
        half: [made.num_actual_tokens, made.max_query_len, made.query_start_loc.tolist(), made.max_num_splits]
        for half, made in halves.items()
    }


def main():
    printed = os.dup(1)
    os.dup2(2, 1)  # vLLM prints its log
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VLLM_CACHE_ROOT"] = folder
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # may hide all
        load_driver(folder)
        pretend()
        from vllm.config import set_current_vllm_config
        from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
        from vllm.distributed.parallel_state import get_tp_group

        from swiftkv.serve import register

        register()
        found = {}
        for name, case in CASES.items():
            config = engine_config(folder, *case)
            size = config.parallel_config.tensor_parallel_size
            with set_current_vllm_config(config):
                if not found:
                    init_distributed_environment(1, 0, f"file://{folder}/ranks", 0, "gloo")
                    ensure_model_parallel_initialized(1, 1)
                # The last rank; making a model communicates with no other.
                with patch.multiple(get_tp_group(), world_size=size, rank_in_group=size - 1):
                    found[name] = chosen(config)
    os.write(printed, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
