"""Write checkpoints, and try to before a training spends its time."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from swiftkv.errors import UserError, one_line
from swiftkv.io import atomic_path, check_space
from swiftkv.models.older import add_older_config, add_older_tokenizer
from swiftkv.models.sharing import base_dtype, share
from swiftkv.models.swiftkv import quiet
from swiftkv.quantize.linear import checkpoint_tensors, is_quantized


def save_model(
    model: PreTrainedModel,
    path: str | Path,
    keep_teacher_qkv: bool = True,
    tokenizer: PreTrainedTokenizerBase | None = None,
    state_dict: dict[str, torch.Tensor] | None = None,
    base: str | Path | None = None,
) -> None:
    """Write a checkpoint atomically, of a SwiftKV model with the published names.

    Args:
        model: SwiftKV or ordinary language model.
        path: folder; an existing one is replaced.
        keep_teacher_qkv: also write the teacher's projections of layers >= l.
        tokenizer: saved into the same folder.
        state_dict: the weights if `model` does not hold them (ZeRO-3).
        base: folder of the checkpoint that `model` was rewired from and that has all weights but the added ones. Its files
            are linked, by relative links if it is a relative path, and only the added weights are written, in the base's
            number format.
    """
    tensors = model.state_dict() if state_dict is None else state_dict
    dtype = None if base is None else base_dtype(Path(base))
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items() if "_swiftkv." in name}
    if not keep_teacher_qkv:
        unused = model.teacher_projection_names()
        tensors = {name: tensor for name, tensor in tensors.items() if name not in unused}
    if is_quantized(model.config):
        tensors = checkpoint_tensors(model, tensors)
    written = copy.copy(model)
    written.generation_config = GenerationConfig()
    if hasattr(model.config, "swiftkv"):
        written.config = copy.copy(model.config)
        written.config.swiftkv = True
    with atomic_path(path) as scratch, quiet():
        if base is None:
            written.save_pretrained(scratch, state_dict=tensors)
        else:
            written.config.dtype = dtype
            written.config.save_pretrained(scratch)
            share(tensors, scratch, Path(base), Path(path))
        add_older_config(scratch)
        # transformers reads settings that its save_pretrained refuses, such as a temperature without sampling.
        model.generation_config.to_json_file(scratch / "generation_config.json")
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
            add_older_tokenizer(scratch, tokenizer)


def try_saving(
    model: PreTrainedModel, path: Path, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, base: Path | None = None
) -> None:
    """Write a checkpoint without weights beside `path`, read it back and delete it, before a training spends its time.

    Args:
        model: the model to save after training.
        path: folder of its checkpoint.
        tokenizer: saved into the same folder.
        dtype: dtype of the saved weights.
        base: as in `save_model`.

    Raises:
        UserError: a file cannot be written or read back, or the disk has no space for the weights.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
            save_model(model, scratch, tokenizer=tokenizer, state_dict={}, base=base)
            for part in (AutoConfig, GenerationConfig, AutoTokenizer):
                part.from_pretrained(scratch)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"the trained checkpoint {path} could not be saved: {one_line(error)}") from None
    weights = model.swiftkv_parameters().values() if base else model.parameters()
    check_space(path.parent, dtype.itemsize * sum(weight.numel() for weight in weights))
