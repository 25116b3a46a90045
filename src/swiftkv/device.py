"""Device, dtype and ranks."""

from __future__ import annotations

import datetime
import os
import socket
import sys
import threading
from typing import Any

import torch

# Timeout between ranks. The first alone hashes and writes a state (228 GB for 405B) or the checkpoint (421 GB), over an hour
# on a slow disk; NCCL's default is 10 minutes.
COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)
JOINING = datetime.timedelta(minutes=10)  # to meet all ranks and add one number over them


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


def join_ranks(limit: datetime.timedelta = JOINING, **alone: Any) -> None:
    """Join the launcher's ranks and sum one number over them, so that a broken network shows before work begins.

    The process ends with status 1 and a sentence on stderr if that takes too long.

    Args:
        limit: time for it.
        alone: arguments of `init_process_group` without a launcher.
    """
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    # Neither a lookup of names nor NCCL's connections have a limit that holds for every way in which they hang.
    timer = threading.Timer(limit.total_seconds(), _give_up, [limit])
    timer.daemon = True
    timer.start()
    try:
        # DeepSpeed creates groups without a timeout.
        torch.distributed.distributed_c10d.default_pg_nccl_timeout = COLLECTIVE_TIMEOUT
        torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=COLLECTIVE_TIMEOUT, **alone)
        count = torch.ones(1, device=compute_device())
        torch.distributed.all_reduce(count)
        count.item()  # waits for the GPU
    finally:
        timer.cancel()


def _give_up(limit: datetime.timedelta) -> None:
    where = {name: os.environ.get(name, "?") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    print(
        "error: rank {RANK} of {WORLD_SIZE} did not meet all others at {MASTER_ADDR}:{MASTER_PORT} ".format_map(where)
        + f"from {socket.gethostname()} within {limit.total_seconds():.0f} seconds: look at the logs for ranks that did not "
        "start, and at the network between the nodes (NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO says more)",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)  # the main thread may hang in a library


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
