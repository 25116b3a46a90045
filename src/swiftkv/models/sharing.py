"""Checkpoints that share the weight files of their base.

Such a folder has the added tensors in `swiftkv.safetensors`, whose metadata `base` has the digest of each of the base's
files, a link `base-NAME` to each of these, and `model.safetensors.index.json`, by which transformers and vLLM load both.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swiftkv.errors import UserError, one_line
from swiftkv.io import ADDED, INDEX, TOKENIZER_FILES, atomic_path, digest, read_json, tensor_shapes, write_json

LINK = "base-{}"  # transformers takes a file called model.safetensors for the whole model


def base_dtype(base: Path) -> torch.dtype:
    """Return the number format of a base's weights, with FP8 weights that of its norms."""
    name = "model.norm.weight"
    with safe_open(tensor_shapes(base)[name][0], framework="pt") as tensors:
        return tensors.get_tensor(name).dtype


def share(tensors: dict[str, torch.Tensor], folder: Path, base: Path, place: Path) -> None:
    """Write the weights of a checkpoint that shares those of its base.

    Args:
        tensors: the added ones.
        folder: where they are written.
        base: folder of the base; links to it are relative if it is.
        place: where `folder` will lie.
    """
    known = {name: digest(file) for name, file in _weight_files(base).items()}
    save_file(tensors, folder / ADDED, metadata={"format": "pt", "base": json.dumps(known)})
    _order_metadata(folder / ADDED)
    _link(folder, base, place)


def _order_metadata(file: Path) -> None:
    """Sort the metadata of a safetensors file, which `save_file` writes in another order in each run."""
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        opened.seek(8)
        opened.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def attach(base: Path, added: Path, output: Path) -> None:
    """Make a checkpoint of a base and a folder with the `swiftkv.safetensors` and `config.json` that a training added to it.

    Args:
        base: folder of the base; links to it are relative if it is. Gives what `added` lacks of a tokenizer.
        added: folder with the two files.
        output: folder of the checkpoint; an existing one is replaced.

    Raises:
        UserError: a file is missing or damaged, or `base` is another than that of the training.
    """
    known, files = _known(added), _weight_files(base)
    read_json(added / "config.json")
    for name, expected in known.items():
        if name not in files or digest(files[name]) != expected:
            raise UserError(
                f"{base} is not the base that {added / ADDED} was trained on: its {name} is "
                f"{'another' if name in files else 'missing'}; give the model and revision that its model card names"
            )
    with atomic_path(output) as scratch:
        scratch.mkdir()
        for source in [file for pattern in TOKENIZER_FILES for file in base.glob(pattern)] + list(added.iterdir()):
            if source.is_file() and source.name != INDEX and source.suffix != ".safetensors":
                shutil.copyfile(source, scratch / source.name)
        shutil.copyfile(added / ADDED, scratch / ADDED)
        _link(scratch, base, output)


def is_added(folder: Path) -> bool:
    """Return True for a folder that `attach` makes a checkpoint of: with `swiftkv.safetensors`, but no base."""
    return (folder / ADDED).is_file() and not (folder / INDEX).is_file()


def check_base(folder: Path) -> None:
    """Check that the base's files of a checkpoint that shares them are there and as they were; any other passes.

    Raises:
        UserError: one is gone or has changed.
    """
    if not (folder / ADDED).is_file():
        return
    for name, expected in _known(folder).items():
        file = folder / LINK.format(name)
        if not file.is_file() or digest(file) != expected:
            raise UserError(
                f"{file.resolve()} of the base model that {folder} shares its weights with "
                f"{'has changed' if file.is_file() else 'is gone'}: bring it back, or make the checkpoint with another copy "
                f"of the base, `python -m swiftkv.attach BASE {folder} OUTPUT`"
            )


def _weight_files(base: Path) -> dict[str, Path]:
    """Return the weight files of a checkpoint by name."""
    return {file.name: file for file, _ in tensor_shapes(base).values()}


def _known(folder: Path) -> dict[str, str]:
    """Read the digests of the base's files in `swiftkv.safetensors`, by name."""
    file = folder / ADDED
    try:
        with safe_open(file, framework="pt") as tensors:
            return json.loads((tensors.metadata() or {})["base"])
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{file} is damaged or was not written by swiftkv ({one_line(error)})") from None


def _link(folder: Path, base: Path, place: Path) -> None:
    """Link the base's weight files and write the index."""
    target = base
    if not base.is_absolute():
        # The base, too, may be a link, to which links lead.
        target = Path(os.path.relpath(*(path.parent.resolve() / path.name for path in (base, place))))
    for name in _weight_files(base):
        (folder / LINK.format(name)).symlink_to(target / name)
    listed = {name: LINK.format(file.name) for name, (file, _) in tensor_shapes(base).items()}
    listed |= dict.fromkeys(tensor_shapes(folder), ADDED)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": listed})
