"""Atomic files, JSON, checksums, and the headers of checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from swiftkv.errors import UserError, one_line

SAMPLE = 2**20  # bytes per read of `digest`
PIECE = 64 * 2**20  # bytes per read of `read_ahead`


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path for a file, folder or link, and move it to `path` if the block succeeds.

    What exists at `path` is replaced. Files get the modes of the umask, which safetensors does not give its own.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch / path.name
        os.umask(umask := os.umask(0o077))  # it cannot be read without being set
        for file in scratch.rglob("*"):  # a link in it is not followed
            if file.is_file() and not file.is_symlink():
                file.chmod(0o666 & ~umask)
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_space(folder: Path, needed: float) -> None:
    """Raise a `UserError` if the disk of `folder` has less than `needed` bytes free."""
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UserError(
            f"{folder} has {free / 1e9:.1f} GB free and at least {needed / 1e9:.1f} GB will be written there: free some "
            "space, or put it on another disk"
        )


def text_of(file: Path) -> str:
    """Read a UTF-8 file, damaged bytes replaced; empty if it does not exist."""
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def write_text(path: str | Path, text: str) -> None:
    """Write a file in UTF-8, atomically."""
    with atomic_path(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as indented JSON, atomically; raise a `UserError` for NaN and infinity."""
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise UserError(
            f"{path} is not written: one of its numbers is NaN or infinite, so nothing was measured"
        ) from None
    write_text(path, text + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raise a `UserError` if it is missing or damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete it and run again") from None


def digest(path: Path) -> str:
    """SHA-256 of the size and up to 64 evenly spaced MiB of a file, fast for large weights."""
    total = hashlib.sha256(str(size := path.stat().st_size).encode())
    with path.open("rb") as file:
        for part in range(64):
            file.seek(max(0, (size - SAMPLE) * part // 63) if size > 64 * SAMPLE else part * SAMPLE)
            total.update(file.read(SAMPLE))
    return total.hexdigest()


def checksum(path: Path) -> str:
    """SHA-256 of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_ahead(folder: Path) -> None:
    """Read a checkpoint's safetensors files in order, so that memory maps find them in the page cache.

    Shared file systems answer the page faults of a map several times slower.
    """
    piece = bytearray(PIECE)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(piece):
                pass


def tensor_shapes(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return file and shape of every tensor of a checkpoint from the headers of its safetensors files.

    Raises:
        UserError: a file is missing, damaged or shorter than its header says.
    """
    single, index_file = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        files = [single]
    elif index_file.exists():
        index = read_json(index_file)
        listed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(listed, dict) or not listed:
            raise UserError(f"{index_file} lists no files")
        files = sorted({folder / name for name in listed.values()})
    else:
        raise UserError(f"{single} does not exist; the checkpoint needs its weights as safetensors")
    found = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                found |= {name: (file, tuple(tensors.get_slice(name).get_shape())) for name in tensors.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise UserError(f"{file} does not exist, but {index_file.name} lists it") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is damaged or cut short ({one_line(error)}); fetch or write it again") from None
    return found
