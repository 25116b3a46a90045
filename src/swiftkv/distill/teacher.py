"""The teacher's states, computed once and read by every variant that trains on the same rows.

They depend on the model and the data alone: the residual stream entering layer l, for each l in use, and the final
normed hidden states, from which the language-model head gives the logits. Per token that is D numbers a tensor, where
the logits would be V.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swiftkv.distill.attention import choose_for
from swiftkv.distill.device import compute_device
from swiftkv.distill.packing import PackedRows, gather_rows, open_tensors
from swiftkv.distill.progress import Progress
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.state import digest
from swiftkv.distill.step import DistillationStep
from swiftkv.errors import UserError
from swiftkv.models import load_base
from swiftkv.records import atomic_path
from swiftkv.spec import SwiftKVSpec

FINAL = "final"


def entering(layer: int) -> str:
    """Name of the tensor with the residual stream entering `layer`."""
    return f"entering_{layer}"


@torch.no_grad()
def write_teacher_states(model: Path, data: Path, recipe: Recipe, layers: list[int], output: Path) -> None:
    """Run the teacher over all packed rows and write its states, bit for bit those of a training with "online".

    Args:
        model: folder of the ordinary checkpoint.
        data: packed rows.
        recipe: its micro-batch size and dtype decide the arithmetic.
        layers: every l whose entering residual stream is wanted.
        output: one safetensors file: `final` and `entering_<l>`, each [rows, max_length, D] in the recipe's dtype.

    Raises:
        UserError: the model, the data or a layer is not what it has to be.
    """
    choose_for(recipe)  # what cannot work here has to show before the model is loaded
    rows = PackedRows(data)
    base = load_base(model, dtype=recipe.torch_dtype)
    depth, width = base.config.num_hidden_layers, base.config.hidden_size
    for layer in layers:
        if not 0 < layer < depth:
            raise UserError(f"layer {layer} is not between 1 and {depth - 1}, the layers that can be rewired")
    lowest = min(layers)
    device = compute_device()
    plain = dataclasses.replace(recipe, loss="distillation", train="qkv")  # the teacher is the same whatever is trained
    step = DistillationStep(base, SwiftKVSpec(depth, lowest), plain).to(device)
    shape = (rows.rows, rows.max_length, width)
    description = {"layers": sorted(layers), **states_identity(model, data, recipe)}
    names = [FINAL, *(entering(layer) for layer in sorted(set(layers)))]
    size = recipe.micro_batch_size
    progress = Progress("teacher states", rows.rows, "row")
    with atomic_path(output) as scratch:
        arrays = allocate(scratch, dict.fromkeys(names, shape), recipe.dtype, description)
        for start in range(0, rows.rows, size):
            wanted = list(range(start, min(start + size, rows.rows)))
            # A short last micro-batch is filled up: the shape of a matrix product can change its rounding.
            batch = rows[wanted + [wanted[-1]] * (size - len(wanted))]
            state, final, inner = step.teacher_states(
                *(batch[name].to(device) for name in ("input_ids", "position_ids"))
            )
            states = {FINAL: final, entering(lowest): state.hidden}
            states |= {entering(layer): inner[layer - lowest] for layer in layers}
            for name, values in states.items():
                arrays[name][wanted] = raw(values[: len(wanted)])
            progress.at(wanted[-1] + 1)
        for array in arrays.values():
            array.flush()


def states_identity(model: Path, data: Path, recipe: Recipe) -> dict[str, Any]:
    """What the states were computed from."""
    return {
        "model": {file.name: digest(file) for file in sorted(model.glob("*.safetensors"))},
        "data": digest(data),
        "dtype": recipe.dtype,
        "micro_batch_size": recipe.micro_batch_size,
        "attention": recipe.attention,
    }


def raw(values: torch.Tensor) -> np.ndarray:
    """The bits of a bfloat16 or float32 tensor, as numpy can hold them."""
    values = values.cpu().contiguous()
    return (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()


def allocate(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str, description: dict) -> dict[str, np.memmap]:
    """Make a safetensors file of the given tensors with its space reserved, and map them for writing.

    Writing through a mapping keeps memory small, where the safetensors library wants all tensors at once.
    """
    code, kind = {"bfloat16": ("BF16", np.uint16), "float32": ("F32", np.float32)}[dtype]
    header: dict[str, Any] = {"__metadata__": {"description": json.dumps(description, sort_keys=True)}}
    end = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, begin + end)  # a full disk shows here, not as a crash later
    starts = {name: begin + header[name]["data_offsets"][0] for name in shapes}
    return {name: np.memmap(path, kind, "r+", starts[name], shape) for name, shape in shapes.items()}


class TeacherStates:
    """The stored states of one data set, memory-mapped."""

    def __init__(self, path: str | Path, layer: int, model: Path, data: Path, recipe: Recipe) -> None:
        """Open `path` for a student with l = `layer`.

        Raises:
            UserError: the file is missing or damaged, lacks the layer, or belongs to another model, data set or recipe.
        """
        names = (FINAL, entering(layer))
        self._file, description = open_tensors(Path(path), names)
        for name, value in states_identity(model, data, recipe).items():
            if description.get(name) != value:
                raise UserError(f"the teacher states in {path} are of another {name}; delete the file and run again")
        self._final, self._lower = (self._file.get_slice(name) for name in names)

    def __getitem__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """`lower_hidden` and `teacher_hidden` of the given rows, each [len(rows), max_length, D]."""
        return {"lower_hidden": gather_rows(self._lower, rows), "teacher_hidden": gather_rows(self._final, rows)}
