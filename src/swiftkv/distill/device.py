"""Where trainings compute."""

from __future__ import annotations

import os

import torch


def compute_device() -> str:
    """This rank's GPU, or the processor if there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


if compute_device() == "cpu":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed, once imported, warns while it looks for a GPU
