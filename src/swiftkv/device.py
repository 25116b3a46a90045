"""Where models compute."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch

# How long a rank waits for another one. The first works alone while it hashes a state, writes one (228 GB for 405B) or the
# checkpoint (421 GB): over an hour on a slow disk, where NCCL by itself would end the others after 10 minutes.
PATIENCE = datetime.timedelta(hours=2)


def compute_device() -> str:
    """This rank's GPU, or the processor if there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_map() -> str | None:
    """What transformers' `device_map` fills all GPUs there are with; None, the processor, if there is none."""
    return "auto" if torch.cuda.is_available() else None


def compute_dtype(device: str | None = None) -> torch.dtype:
    """Return the number format that models compute in where a setting says `auto`.

    That is bfloat16 on a GPU and on a processor with instructions for bfloat16 products (AMX or AVX-512 BF16), and float32
    on every other processor: without those, torch multiplies bfloat16 five to ten times slower than float32.

    Args:
        device: "cuda" or "cpu"; None is `compute_device()`.
    """
    if (device or compute_device()) == "cuda":
        return torch.bfloat16
    processor = torch.cpu.get_capabilities()
    # ATEN_CPU_CAPABILITY can hold torch's kernels below what the processor has.
    limited = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2")
    multiplies = processor.get("amx_bf16", False) or processor.get("avx512_bf16", False)
    return torch.bfloat16 if multiplies and not limited else torch.float32


def dtype_name(setting: str = "auto", device: str | None = None) -> str:
    """Return the number format that a setting means: "bfloat16", "float16" or "float32".

    Args:
        setting: such a name, or `auto`, which is `compute_dtype(device)`.
        device: "cuda" or "cpu"; None is `compute_device()`.
    """
    return str(compute_dtype(device)).removeprefix("torch.") if setting == "auto" else setting


def accelerator() -> str | None:
    """Name of this rank's GPU, if there is one."""
    return torch.cuda.get_device_name() if compute_device() == "cuda" else None


def join_ranks(**alone: Any) -> None:
    """Meet the launcher's other ranks; `alone` is for a process that no launcher started, as torch's function takes it."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    # Groups that DeepSpeed makes ask for no timeout, and would take NCCL's own.
    torch.distributed.distributed_c10d.default_pg_nccl_timeout = PATIENCE
    torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE, **alone)


@contextlib.contextmanager
def launched_ranks() -> Iterator[None]:
    """Join the other ranks, if a launcher (torchrun, SLURM with RANK set) started this process."""
    if "RANK" not in os.environ:
        yield
        return
    join_ranks()
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def rank() -> int:
    """Number of this process among those of the launcher."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def ranks() -> int:
    """How many processes the launcher started."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


if compute_device() == "cpu":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed, once imported, warns while it looks for a GPU
