"""How much memory a point gives the KV cache, and what the weights take of a stated limit. GB are 2^30 bytes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from swiftkv.cost import Architecture
from swiftkv.errors import UserError
from swiftkv.measure.engine import OutOfMemory
from swiftkv.spec import SwiftKVSpec

GIB = 2**30
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Budget:
    """vLLM arguments that set the memory, and what they mean in a sentence; `kv_cache_bytes` where it is set exactly."""

    arguments: dict[str, Any]
    sentence: str
    kv_cache_bytes: int | None = None


def weight_bytes(config: dict[str, Any], spec: SwiftKVSpec | None, dtype: str = "bfloat16") -> int:
    """Bytes of the weights a server holds; the teacher's unused projections of a SwiftKV checkpoint are not loaded.

    Args:
        config: config.json of a Llama, Mistral or Qwen2 model, SwiftKV or not.
        spec: the variant; None is the unchanged model.
    """
    arch = Architecture.from_config(config)
    family = str(config["model_type"]).removesuffix("_swiftkv")
    bias = family == "qwen2" or (family == "llama" and config.get("attention_bias"))
    width, layers = arch.hidden_size, arch.num_hidden_layers
    query = arch.num_attention_heads * arch.head_dim
    below = layers if spec is None else spec.num_key_value_layers
    upper_heads = arch.num_key_value_heads if spec is None else spec.num_key_value_heads or arch.num_key_value_heads
    kv_heads = below * arch.num_key_value_heads + (0 if spec is None else len(spec.groups) * upper_heads)
    key_value = 2 * kv_heads * arch.head_dim
    count = arch.vocab_size * width * (1 if config.get("tie_word_embeddings") else 2)
    count += layers * (2 * query * width + 3 * width * arch.intermediate_size + 2 * width)  # q, o, mlp, norms
    count += key_value * width + width  # k and v; the last norm
    if bias:
        count += layers * query + key_value + (layers * width if family == "llama" else 0)
    if spec is not None and spec.groups:
        count += width  # norm_swiftkv
    return count * BYTES[dtype]


def cpu_budget(
    limit: float | None, cache: float | None, config: dict[str, Any], spec: SwiftKVSpec | None, dtype: str = "bfloat16"
) -> Budget:
    """On a CPU the cache gets `cache` GB, or what the weights leave of `limit` GB.

    Raises:
        OutOfMemory: the limit is not larger than the weights.
    """
    if limit is None:
        if cache is None:
            raise UserError("serving on a CPU needs serving.engine.cpu_kv_cache_gib")
        size = int(cache * GIB)
        return Budget({"--kv-cache-memory-bytes": size}, f"a KV cache of {cache:g} GB", size)
    weights = weight_bytes(config, spec, dtype)
    size = int(limit * GIB) - weights
    if size <= 0:
        raise OutOfMemory(f"the weights take {weights / GIB:.3f} GB of the {limit:g} GB there are")
    sentence = (
        f"a limit of {limit:g} GB less {weights / GIB:.3f} GB of weights: a KV cache of {size / GIB:.3f} GB "
        "(activations are not counted on a CPU)"
    )
    return Budget({"--kv-cache-memory-bytes": size}, sentence, size)


def gpu_budget(limit: float | None, utilization: float) -> Budget:
    """On a GPU vLLM gets `utilization` of the device, or `limit` GB for weights, activations and cache together.

    A limit that the device does not exceed by more than the utilization allows is the device itself.
    """
    if limit is None:
        return Budget({"--gpu-memory-utilization": utilization}, f"{utilization:g} of each GPU's memory")
    device = device_memory()
    share = limit * GIB / device
    if share >= utilization:
        sentence = f"{utilization:g} of each GPU's {device / GIB:.1f} GB, the whole device for a limit of {limit:g} GB"
        return Budget({"--gpu-memory-utilization": utilization}, sentence)
    # Not rounded up: the limit is one.
    share = int(share * 10_000) / 10_000
    return Budget(
        {"--gpu-memory-utilization": share},
        f"{limit:g} GB for weights, activations and KV cache: {share:g} of each GPU's {device / GIB:.1f} GB",
    )


def device_memory() -> int:
    """Bytes of the first GPU; asked in another process, so that this one holds no memory there while vLLM runs."""
    question = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    if answer.returncode or not answer.stdout.strip().isdigit():
        raise UserError("a memory limit on a GPU needs a GPU, and torch finds none")
    return int(answer.stdout)
