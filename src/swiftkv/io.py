"""Atomic files, JSON, checksums, and the headers of checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from swiftkv.errors import UserError, one_line

ADDED, INDEX = "swiftkv.safetensors", "model.safetensors.index.json"  # files of a checkpoint; see models/sharing.py
TOKENIZER_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]
SAMPLE = 2**20  # bytes per read of `digest`
LFS = b"version https://git-lfs"  # how the pointer begins that stands for a large file in a Git repository
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
        refuse_pointer(Path(path))
        raise UserError(
            f"{path} is not valid JSON ({error}): correct it or fetch it again; one that a job wrote can be deleted, as the next "
            "run makes it"
        ) from None


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


def refuse_pointer(file: Path) -> None:
    """Raise a `UserError` if Git LFS has not replaced its pointer by the content of a file yet."""
    with file.open("rb") as opened:
        if opened.read(len(LFS)) == LFS:
            raise UserError(f"{file} is a pointer of Git LFS and not the file itself; run `git lfs pull` in its folder")


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
    """Return file and shape of every tensor of a checkpoint, or of what was added to one, from the safetensors headers.

    Raises:
        UserError: a file is missing, damaged or shorter than its header says.
    """
    single, index_file, added = folder / "model.safetensors", folder / INDEX, folder / ADDED
    if single.exists():
        files = [single]
    elif index_file.exists():
        index = read_json(index_file)
        listed = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(listed, dict) or not listed:
            raise UserError(f"{index_file} lists no files")
        files = sorted({folder / name for name in listed.values()})
    elif added.exists():
        files = [added]
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
            refuse_pointer(file)
            raise UserError(f"{file} is damaged or cut short ({one_line(error)}); fetch or write it again") from None
    return found


def check_tied_head(stored: dict[str, tuple[Path, tuple[int, ...]]]) -> None:
    """Refuse a checkpoint with an lm_head other than the embedding to which its config.json ties it.

    Args:
        stored: its tensors, as `tensor_shapes` returns them.

    Raises:
        UserError: there is such a head; transformers would use it, and vLLM the embedding.
    """
    names = ("lm_head.weight", "model.embed_tokens.weight")
    if not stored.keys() >= set(names):
        return
    head, embedding = (_bytes(stored[name][0], name) for name in names)
    parts = range(0, max(len(head), len(embedding)), SAMPLE)
    if any(bytes(head[at : at + SAMPLE]) != bytes(embedding[at : at + SAMPLE]) for at in parts):
        raise UserError(
            f"{stored[names[0]][0]} holds an lm_head.weight that is not the embedding, but config.json has "
            "tie_word_embeddings: true, so that it is unclear which of the two the model has: set it to false, or take the "
            "tensor out"
        )


def _bytes(file: Path, name: str) -> memoryview:
    """Map the bytes of a tensor of a safetensors file."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        begin, end = (8 + size + offset for offset in json.loads(opened.read(size))[name]["data_offsets"])
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))[begin:end]


def check_token_ids(folder: Path) -> None:
    """Refuse a checkpoint with tokens that text or chat template may produce and its embedding has no row for.

    Special tokens that neither marks texts nor stands in the template are not produced; `padding_id` replaces the one to pad.

    Args:
        folder: has config.json and tokenizer.json or tokenizer_config.json; without them nothing is checked.

    Raises:
        UserError: naming the first such token.
    """
    config, tokenizer, settings = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    )
    rows = config.get("vocab_size") or math.inf
    if (words := len((tokenizer.get("model") or {}).get("vocab", ()))) > rows:
        raise UserError(
            f"the tokenizer of {folder} has {words} tokens, but the embedding only {rows} rows: take its own one"
        )
    template = text_of(folder / "chat_template.jinja") or settings.get("chat_template")
    marks = [settings.get(f"{name}_token") for name in ("bos", "eos", "unk")]
    written = str([template, *marks, tokenizer.get("post_processor")])
    listed = [token | {"id": int(number)} for number, token in settings.get("added_tokens_decoder", {}).items()]
    for token in tokenizer.get("added_tokens", listed):
        name = token["content"]
        produced = not token.get("special") or name in written
        if token["id"] >= rows and produced and name not in str(settings.get("pad_token")):
            raise UserError(
                f"token {name!r} of {folder} has the id {token['id']}, but the embedding only {rows} rows: enlarge it, or take "
                "the token out of tokenizer and chat template"
            )
