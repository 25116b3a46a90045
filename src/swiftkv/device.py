"""Device, dtype and ranks."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch

# Timeout between ranks. The first alone hashes and writes a state (228 GB for 405B) or the checkpoint (421 GB), over an hour
# on a slow disk; NCCL's default is 10 minutes.
PATIENCE = datetime.timedelta(hours=2)


def compute_device() -> str:
    """Return "cuda" or "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_map() -> str | None:
    """Return transformers' `device_map` for all GPUs; None, the CPU, without any."""
    return "auto" if torch.cuda.is_available() else None


def compute_dtype(device: str | None = None) -> torch.dtype:
    """Return the dtype of `auto`: bfloat16 on GPUs and on CPUs with AMX or AVX-512 BF16, otherwise float32.

    Other CPUs multiply bfloat16 five to ten times slower than float32.

    Args:
        device: "cuda" or "cpu"; None means `compute_device()`.
    """
    if (device or compute_device()) == "cuda":
        return torch.bfloat16
    processor = torch.cpu.get_capabilities()
    # ATEN_CPU_CAPABILITY can limit torch's kernels.
    limited = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    multiplies = processor.get("amx_bf16", False) or processor.get("avx512_bf16", False)
    return torch.bfloat16 if multiplies and not limited else torch.float32


def dtype_name(setting: str = "auto", device: str | None = None) -> str:
    """Return the name of a dtype setting, e.g. "bfloat16"; `auto` is `compute_dtype(device)`."""
    return str(compute_dtype(device)).removeprefix("torch.") if setting == "auto" else setting


def accelerator() -> str | None:
    """Name of this rank's GPU; None without one."""
    return torch.cuda.get_device_name() if compute_device() == "cuda" else None


def join_ranks(**alone: Any) -> None:
    """Join the launcher's ranks; without a launcher, `alone` are arguments of `init_process_group`."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    # DeepSpeed creates groups without a timeout.
    torch.distributed.distributed_c10d.default_pg_nccl_timeout = PATIENCE
    torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE, **alone)


@contextlib.contextmanager
def launched_ranks() -> Iterator[None]:
    """Join the other ranks if a launcher (torchrun, SLURM with RANK set) started this process."""
    if "RANK" not in os.environ:
        yield
        return
    join_ranks()
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
