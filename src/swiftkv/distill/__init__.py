"""Distillation of a SwiftKV student from the model it was rewired from (paper, Sec. 3.4 and App. B.1)."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed, once imported, warns while it looks for a GPU
