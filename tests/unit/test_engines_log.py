"""What vLLM ran, and why it failed, is read from what it prints."""

from pathlib import Path

import pytest

from pipeline.engines.log import EngineFailure, OutOfMemory, failure, observed

# Printed by vLLM 0.32.0 on a CPU and by 0.26.0 on a GPU; long fields cut out.
CPU_LOG, CUDA_LOG = (
    Path(__file__).with_name("logs").joinpath(f"vllm-{kind}.log").read_text() for kind in ("cpu", "cuda")
)
FAST = "INFO 11-21 [settings.py:61] SwiftKV: layers 14 to 29 read 16 KV cache(s) made from layer 14's input; {}\n"


def test_a_cpu_log():
    assert observed(CPU_LOG, kv_cache_dtype="auto", swiftkv=False) | {"vllm": None} == {
        "vllm": None,
        "attention_backend": "CPU_ATTN",
        "compilation": "eager",
        "kv_cache_tokens": 19456,
        "kv_cache_gib": None,
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
        "chunked_prefill": True,
        "dtype": "bfloat16",
        "quantization": None,
        "fast_prefill": False,
    }


def test_a_cuda_log():
    seen = observed(CUDA_LOG, kv_cache_dtype="fp8", swiftkv=False)
    assert seen["attention_backend"] == "FLASH_ATTN"
    assert seen["compilation"] == "compiled, vllm_compile, CUDA graphs full_and_piecewise"
    assert (seen["kv_cache_tokens"], seen["kv_cache_gib"], seen["kv_cache_dtype"]) == (1234567, 54.31, "fp8")
    assert seen["quantization"] == "fp8"
    fused = CUDA_LOG.replace("'cudagraph_num_of", "'pass_config': {'fuse_allreduce_rms': True}, 'cudagraph_num_of")
    assert (
        observed(fused, kv_cache_dtype="fp8", swiftkv=False)["compilation"]
        == seen["compilation"] + ", fused all-reduce"
    )


@pytest.mark.parametrize(
    "words, fast",
    [("prompt tokens skip 16 layers (for ...", True), ("every token runs at full depth", False), ("?", None)],
)
def test_the_mode_is_what_the_plugin_says(words, fast):
    assert observed(CPU_LOG + FAST.format(words), kv_cache_dtype="auto", swiftkv=True)["fast_prefill"] is fast


NO_BLOCKS = (
    "(EngineCore pid=1) ERROR 11-21 [core.py:99] ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.\n"
)
TOO_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (640), (0.01 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated ...\n"
)
CUDA_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity\n"


@pytest.mark.parametrize("log", [NO_BLOCKS, TOO_SMALL, CUDA_MEMORY])
def test_too_little_memory_is_a_value(log):
    error = failure(
        "vllm serve", 1, CPU_LOG + log + "RuntimeError: Engine core initialization failed. See root cause", "LOG"
    )
    assert isinstance(error, OutOfMemory)
    assert "\n" not in str(error) and str(error).startswith("vLLM has not enough memory: ")


@pytest.mark.parametrize(
    "log, sentence",
    [
        (
            "(EngineCore pid=2) ERROR [x.py:2] RuntimeError: Worker failed with error 'Unsupported', please check\n"
            "(Worker pid=1) ERROR 11-21 [x.py:1] RuntimeError: Unsupported CPU attention configuration: head_dim=16\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n",
            "vllm serve ended with status 1: RuntimeError: Unsupported CPU attention configuration: head_dim=16",
        ),
        (
            "pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, too long [type=x]\n",
            "vllm serve ended with status 1: ValidationError: 1 validation error for ModelConfig: too long",
        ),
        ("usage: vllm\nvllm: error: unrecognized arguments: --no\n", "unrecognized arguments: --no"),
        ("Killed\n", "vllm serve ended with status 1: Killed"),
        (f"ValueError: /{'folder/' * 60}\n", "vllm serve ended with status 1: ValueError: /folder/folder"),
        ("", "vllm serve ended with status 1: it printed nothing"),
        # Another process holds the memory: not a property of the model.
        (
            "ValueError: Available memory on node 0 (1.0/20.0 GiB) on kv cache allocation is less than requested\n",
            "ValueError: Available memory on node 0",
        ),
    ],
)
def test_any_other_failure_is_one_sentence(log, sentence):
    error = failure("vllm serve", 1, log, "LOG")
    assert isinstance(error, EngineFailure) and not isinstance(error, OutOfMemory)
    assert sentence in str(error) and "\n" not in str(error)
