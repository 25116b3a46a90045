"""Open safetensors files with clear errors, and write them piece by piece."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swiftkv.errors import UserError
from swiftkv.io import atomic_path

KINDS = {torch.bfloat16: "BF16", torch.float32: "F32"}  # safetensors' names


def header(
    shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, description: dict[str, Any] | None = None
) -> tuple[bytes, dict[str, int], int]:
    """Make the header of a file with tensors of these shapes, in this order.

    Returns:
        The header's bytes, each tensor's offset in the file, and the size of the file.
    """
    content: dict[str, Any] = {}
    if description is not None:
        content["__metadata__"] = {"description": json.dumps(description, sort_keys=True)}
    starts, end = {}, 0
    for name, shape in shapes.items():
        starts[name], end = end, end + math.prod(shape) * dtype.itemsize
        content[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {n: begin + start for n, start in starts.items()}, begin + end


def save(path: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
    """Write tensors with `description` as JSON metadata, atomically."""
    with atomic_path(path) as scratch:
        save_file(tensors, scratch, metadata={"description": json.dumps(description, sort_keys=True)})


def write(tensors: dict[str, torch.Tensor], path: Path) -> str:
    """Write contiguous float32 tensors to disk atomically and return the file's SHA-256, computed while writing."""
    scratch, total = path.with_suffix(".part"), hashlib.sha256()
    begin, _, _ = header({name: tuple(tensor.shape) for name, tensor in tensors.items()}, torch.float32)
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


def open_tensors(path: Path, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """Memory-map one of our safetensors files; return its handle and its JSON metadata `description`.

    Raises:
        UserError: it is missing or damaged, or lacks one of the tensors `names`.
    """
    try:
        file = safe_open(path, framework="pt")
        description = json.loads((file.metadata() or {})["description"])
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or no file of this pipeline ({error}); make it again") from None
    if missing := sorted(set(names) - set(file.keys())):
        raise UserError(f"{path} has no tensor {missing[0]!r}; make it again")
    return file, description
