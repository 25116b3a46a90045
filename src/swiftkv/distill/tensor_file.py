"""Safetensors files written piece by piece, where the library wants all tensors at once and tells nothing of the bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch

KINDS = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}  # the format's name of a dtype, and bytes of a number


def header(
    shapes: dict[str, tuple[int, ...]], dtype: str, description: dict[str, Any] | None = None
) -> tuple[bytes, dict[str, int], int]:
    """The beginning of a file of tensors that follow each other in the order given.

    Returns:
        Its bytes; by name where in the file each tensor starts; and the size of the file.
    """
    code, size = KINDS[dtype]
    content: dict[str, Any] = {}
    if description is not None:
        content["__metadata__"] = {"description": json.dumps(description, sort_keys=True)}
    starts, end = {}, 0
    for name, shape in shapes.items():
        starts[name], end = end, end + math.prod(shape) * size
        content[name] = {"dtype": code, "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    found = {name: begin + start for name, start in starts.items()}
    return len(text).to_bytes(8, "little") + text, found, begin + end


def write(tensors: dict[str, torch.Tensor], path: Path) -> str:
    """Write contiguous float32 tensors through to the disk, whole or not at all.

    Returns:
        SHA-256 of the file, taken on the way: reading hundreds of GB once more would take as long again.
    """
    scratch, total = path.with_suffix(".part"), hashlib.sha256()
    begin, _, _ = header({name: tuple(tensor.shape) for name, tensor in tensors.items()}, "float32")
    try:
        with scratch.open("wb") as file:
            for part in (begin, *(tensor.flatten().numpy() for tensor in tensors.values())):
                total.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
    return total.hexdigest()
