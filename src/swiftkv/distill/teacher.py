"""The teacher's states, computed once and shared by every variant that trains on the same rows.

They are the residual stream entering each layer l in use, and the final normed hidden states, which give the logits with D
instead of V numbers per token.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from swiftkv.device import compute_device
from swiftkv.distill.attention import FLEX, MASKED, arguments, choose_kernel
from swiftkv.distill.moments import FINAL, MomentSums
from swiftkv.distill.packing import PackedRows, gather_rows
from swiftkv.distill.progress import ProgressLines
from swiftkv.distill.recipe import FitSettings, ForwardSettings, Recipe
from swiftkv.distill.step import use_attention
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, digest
from swiftkv.models import load_base, rewire, spread
from swiftkv.spec import SwiftKVSpec
from swiftkv.tensor_file import header, open_tensors, save


def entering(layer: int) -> str:
    """Name of the tensor with the residual stream entering `layer`."""
    return f"entering_{layer}"


class Teacher:
    """Runs a model over packed rows, micro-batch by micro-batch."""

    def __init__(self, model: Path, data: Path, recipe: ForwardSettings, layers: Sequence[int]) -> None:
        """Load the model and open the rows.

        Args:
            model: folder of the ordinary checkpoint.
            data: packed rows.
            recipe: gives micro-batch size and dtype, on which the results depend.
            layers: layers whose entering residual stream is needed.

        Raises:
            UserError: the model, the data or a layer is impossible, missing or damaged.
        """
        attention = choose_kernel(recipe)  # raises before the model is loaded
        self.rows = PackedRows(data)
        several_gpus = torch.cuda.device_count() > 1
        base = load_base(model, dtype=recipe.torch_dtype, device_map="auto" if several_gpus else None)
        depth = base.config.num_hidden_layers
        for layer in layers:
            if not 0 < layer < depth:
                raise UserError(f"layer {layer} is not between 1 and {depth - 1}, the layers that can be rewired")
        self.layers, self.size, self.width = sorted(set(layers)), recipe.micro_batch_size, base.config.hidden_size
        if several_gpus and attention == FLEX:
            # Its block mask asks for the samples' numbers, which stay on the first GPU when a layer's hook moves the mask.
            recipe = recipe.model_copy(update={"attention": MASKED})
        self.model = rewire(base, SwiftKVSpec(depth, self.layers[0])).eval().requires_grad_(False)
        self.attention = use_attention(recipe, self.model)
        if several_gpus:
            spread(self.model, base)
        else:
            self.model.to(compute_device())

    def starts(self, tokens: int | None = None) -> range:
        """First rows of the micro-batches, of all or of those that the first `tokens` tokens take."""
        needed = self.rows.rows if tokens is None else -(-tokens // (self.size * self.rows.max_length)) * self.size
        return range(0, min(self.rows.rows, needed), self.size)

    @torch.no_grad()
    def run(
        self, starts: Iterable[int]
    ) -> Iterator[tuple[list[int], dict[int | str, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
        """Run the micro-batches that start at the given rows.

        Yields:
            The row numbers; the residual stream entering each layer >= min(layers), and under `FINAL` the final normed
            hidden states, [micro-batch, max_length, D] each; tokens that are text, bool [micro-batch, max_length], and
            their positions, int64.
        """
        for start in starts:
            wanted = list(range(start, min(start + self.size, self.rows.rows)))
            # Fill up a short last micro-batch: the shape of a matrix product can change its rounding.
            batch = self.rows[wanted + [wanted[-1]] * (self.size - len(wanted))]
            decoder, device = self.model.model, self.model.lm_head.weight.device
            ids, positions = (batch[name].to(device) for name in ("input_ids", "position_ids"))
            state = decoder.forward_lower(ids, positions, **arguments(self.attention, positions))
            final, inner = decoder.forward_upper(state, student=False, collect_hidden=True)
            hidden = dict(enumerate(inner, self.layers[0])) | {FINAL: final, self.layers[0]: state.hidden}
            text = batch["loss_mask"].bool()
            text[len(wanted) :] = False
            yield wanted, hidden, (text, positions)


def write_teacher_states(model: Path, data: Path, recipe: ForwardSettings, layers: Sequence[int], output: Path) -> None:
    """Run the teacher over all packed rows and write its states: those of "online", but for the rounding of products.

    Args and errors are those of `Teacher`; `layers` are every l and the layers that recipes compare. `output` is one
    safetensors file of `final` and `entering_<layer>`, each [rows, max_length, D] in the recipe's dtype.
    """
    recipe = recipe.on_this_device()
    teacher = Teacher(model, data, recipe, layers)
    rows, description = teacher.rows, {"layers": teacher.layers, **states_identity(model, data, recipe)}
    names = {FINAL: FINAL} | {layer: entering(layer) for layer in teacher.layers}
    shape = (rows.rows, rows.max_length, teacher.width)
    progress = ProgressLines("teacher states", rows.rows, "row")
    with atomic_path(output) as scratch:
        mapped, tensors = allocate(scratch, dict.fromkeys(names.values(), shape), recipe.torch_dtype, description)
        for wanted, hidden, _ in teacher.run(teacher.starts()):
            end = wanted[-1] + 1
            for key, name in names.items():
                tensors[name][wanted[0] : end] = hidden[key][: len(wanted)]
            progress.at(end)
        mapped.flush()


def write_moments(model: Path, data: Path, recipe: FitSettings, layers: Sequence[int], output: Path) -> None:
    """Run the teacher over the first `recipe.start_tokens` tokens and write their moments.

    Args are those of `Teacher`; `layers` are every l to fit a start for. `output` is a file of `Moments`.

    Raises:
        UserError: as `Teacher`, or the text does not determine a fit.
    """
    recipe = recipe.on_this_device()
    teacher = Teacher(model, data, recipe, layers)
    starts, sums = teacher.starts(recipe.start_tokens), MomentSums(teacher.model.model, teacher.layers)
    progress = ProgressLines("moments", len(starts), "micro-batch")
    for number, (_, hidden, text) in enumerate(teacher.run(starts), 1):
        sums.add(hidden, *text)
        progress.at(number)
    description = {"layers": teacher.layers, "tokens": sums.tokens, **fits_identity(model, data, recipe)}
    save(output, sums.fits(recipe.start_ridge), description)


def states_identity(model: Path, data: Path, recipe: ForwardSettings) -> dict[str, Any]:
    """Return what the states are computed from, to compare with a file's."""
    return {
        "model": {file.name: digest(file) for file in sorted(model.glob("*.safetensors"))},
        "data": digest(data),
        "dtype": recipe.dtype,
        "micro_batch_size": recipe.micro_batch_size,
        "attention": recipe.attention,
    }


def fits_identity(model: Path, data: Path, recipe: FitSettings) -> dict[str, Any]:
    """Return what the regressions of a start are computed from, to compare with a file's."""
    settings = {"ridge": recipe.start_ridge, "start_tokens": recipe.start_tokens}
    return states_identity(model, data, recipe) | settings


def check_identity(what: str, path: Path, description: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise a `UserError` if a file's description differs from `wanted`."""
    for name, value in wanted.items():
        if description.get(name) != value:
            raise UserError(f"the {what} in {path} are of another {name}; delete the file and run again")


def allocate(
    path: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, description: dict
) -> tuple[mmap.mmap, dict[str, torch.Tensor]]:
    """Create a safetensors file of the given shapes and map it for writing; safetensors needs all tensors in memory."""
    begin, starts, size = header(shapes, dtype, description)
    with path.open("w+b") as file:
        file.write(begin)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, size)  # raises on a full disk; a mapping would crash later
        mapped = mmap.mmap(file.fileno(), size)
    return mapped, {
        name: torch.frombuffer(mapped, dtype=dtype, count=math.prod(shape), offset=starts[name]).view(shape)
        for name, shape in shapes.items()
    }


class TeacherStates:
    """Stored states of one data set, memory-mapped."""

    def __init__(self, path: str | Path, spec: SwiftKVSpec, model: Path, data: Path, recipe: Recipe) -> None:
        """Open the states for a student.

        Raises:
            UserError: the file is missing or damaged, lacks a layer, or belongs to another model, data set or recipe.
        """
        names = {"lower_hidden": entering(spec.num_key_value_layers), "teacher_hidden": FINAL}
        compared = recipe.compared_state(spec)
        if compared is not None:
            names["teacher_compared"] = FINAL if compared == spec.num_hidden_layers else entering(compared)
        self._file, description = open_tensors(Path(path), tuple(names.values()))
        check_identity("teacher states", Path(path), description, states_identity(model, data, recipe))
        self._slices = {argument: self._file.get_slice(name) for argument, name in names.items()}

    def __getitem__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """Arguments of `DistillationStep.forward` for the given rows, each [len(rows), max_length, D]."""
        return {argument: gather_rows(part, rows) for argument, part in self._slices.items()}
