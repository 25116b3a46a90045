"""How much memory a point gives the KV cache, and what the weights take of a stated limit; GiB are 2^30 bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.measure.engine import EngineFailure, OutOfMemory
from swiftkv.cost import GIBI, parameter_count
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Budget:
    """vLLM arguments that set the memory, and what they mean in a sentence; `kv_cache_bytes` where it is set exactly."""

    arguments: dict[str, Any]
    sentence: str
    kv_cache_bytes: int | None = None


def cpu_budget(
    limit: float | None,
    cache: float | None,
    config: dict[str, Any],
    spec: SwiftKVSpec | None,
    dtype: str = "bfloat16",
    wider: int = 1,
) -> Budget:
    """On a CPU the cache gets `cache` GiB, or what the weights leave of `limit` GiB.

    Args:
        limit: GiB for weights and cache. A server does not load the teacher's unused projections of a SwiftKV checkpoint.
        cache: GiB of the cache, where there is no limit.
        config: the checkpoint's config.json.
        spec: the variant; None is the unchanged model.
        dtype: the number format in which both are stated.
        wider: how many times as many bytes a number of the cache really takes; the cache then holds the same tokens.

    Raises:
        OutOfMemory: the limit is not larger than the weights.
    """
    if limit is not None:
        weights = parameter_count(config, spec) * BYTES[dtype]
        size = int(limit * GIBI) - weights
        if size <= 0:
            raise OutOfMemory(f"the weights take {weights / GIBI:.3f} GiB of the {limit:g} GiB there are")
        sentence = (
            f"a limit of {limit:g} GiB less {weights / GIBI:.3f} GiB of weights: a KV cache of {size / GIBI:.3f} GiB "
            "(activations are not counted on a CPU)"
        )
    elif cache is not None:
        size, sentence = int(cache * GIBI), f"a KV cache of {cache:g} GiB"
    else:
        raise UserError("serving on a CPU needs serving.engine.cpu_kv_cache_gib")
    if wider > 1:
        sentence += f", stated for 16-bit numbers: {wider} times that in the number format of this processor"
    return Budget({"--kv-cache-memory-bytes": size * wider}, sentence, size * wider)


def gpu_budget(limit: float | None, utilization: float) -> Budget:
    """On a GPU vLLM gets `utilization` of the device, or `limit` GiB for weights, activations and cache together.

    A limit that the device does not exceed by more than the utilization allows is the device itself.
    """
    share, sentence = utilization, f"{utilization:g} of each GPU's memory"
    if limit is not None:
        device = devices()[0].total
        whole = f"of each GPU's {device / GIBI:.1f} GiB"
        sentence = f"{utilization:g} {whole}, the whole device for a limit of {limit:g} GiB"
        if limit * GIBI / device < utilization:
            share = int(limit * GIBI / device * 10_000) / 10_000  # not rounded up: the limit is one
            sentence = f"{limit:g} GiB for weights, activations and KV cache: {share:g} {whole}"
    return Budget({"--gpu-memory-utilization": share}, sentence)


class Device(NamedTuple):
    """A GPU and the bytes of its memory."""

    name: str
    free: int
    total: int


def devices() -> list[Device]:
    """The GPUs; asked in another process, so that this one holds no memory there while vLLM runs."""
    question = (
        "import json; from torch.cuda import device_count, get_device_name, mem_get_info; "
        "print(json.dumps([[get_device_name(gpu), *mem_get_info(gpu)] for gpu in range(device_count())]))"
    )
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    found = [Device(*device) for device in json.loads(answer.stdout)] if answer.returncode == 0 else []
    if not found:
        raise UserError("this point is served on GPUs, and torch finds none")
    return found


def refuse_neighbors(share: float, found: Sequence[Device]) -> None:
    """Tell a neighbor's memory from the model's, where vLLM has run out of it and has ended.

    Args:
        share: of each GPU's memory, what vLLM was given.
        found: the GPUs, on which this job now holds nothing.

    Raises:
        EngineFailure: one of them has less than that free, so others hold some of what vLLM needed.
    """
    for device in found:
        if device.free < share * device.total:
            raise EngineFailure(
                f"vLLM ran out of memory that others hold, which is no result: with vLLM gone, {device.free / GIBI:.1f} of the "
                f"{device.total / GIBI:.1f} GiB of a {device.name} are free, but vLLM was given {share:g} of them; end what else "
                "runs there (nvidia-smi lists it) and run again"
            )
