"""What can be known of local sources before any work: that they are there, and are what the configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.sources import check_checkpoint

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # a folder that has one of these has a tokenizer


def check_local_sources(config: Mapping[str, Any], directory: Path = Path()) -> None:
    """Look at every local source of a checked configuration.

    Args:
        config: the merged configuration.
        directory: where the run works, from which relative paths are meant.

    Raises:
        UserError: one is not there, is incomplete, or has other dimensions than stated; the sentence names the key.
    """
    for place, source, layers in _sources(config):
        if "local" not in source:
            continue
        path = directory / Path(source["local"]).expanduser()
        try:
            if not path.exists():
                raise UserError(f"{source['local']!r} does not exist; check `local`")
            if place.endswith((".source", ".chat_template")) and place.startswith("models."):
                _check_tokenizer(path)
            if layers is not None:
                _check_checkpoint(path, layers)
        except UserError as error:
            raise UserError(f"config, at {place}: {error}") from None


def _sources(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], int | None]]:
    """Place and source of all that may be read, and how many layers it has, where it is a checkpoint."""
    for name, model in config["models"].items():
        yield f"models.{name}.source", model["source"], model["num_hidden_layers"]
        yield f"models.{name}.chat_template", model.get("chat_template", {}), None
        for variant, source in model.get("checkpoints", {}).items():
            yield f"models.{name}.checkpoints.{variant}", source, model["num_hidden_layers"]
    for name, mix in config["data"].items():
        for number, source in enumerate(mix["sources"]):
            yield f"data.{name}.sources.{number}", source, None
    for name, task in config["tasks"].items():
        yield f"tasks.{name}.source", task.get("source", {}), None
    for name, workload in config["workloads"].items():
        yield f"workloads.{name}.source", {} if "stand_in" in workload else workload["source"], None


def _check_tokenizer(path: Path) -> None:
    if not any((path / file).is_file() for file in TOKENIZERS):
        raise UserError(f"{path} has no tokenizer: none of {', '.join(TOKENIZERS)}")


def _check_checkpoint(path: Path, layers: int) -> None:
    check_checkpoint(path)
    if (own := read_json(path / "config.json").get("num_hidden_layers")) != layers:
        raise UserError(f"{path} has {own} layers, but num_hidden_layers is {layers}")
