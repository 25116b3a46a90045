"""Where trainings compute."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch


def compute_device() -> str:
    """This rank's GPU, or the processor if there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def launched_ranks() -> Iterator[None]:
    """Join the other ranks, if a launcher (torchrun, SLURM with RANK set) started this process."""
    if "RANK" not in os.environ:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
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
