"""What can be known of local sources before any work: that they are there, and are what the configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.section import Section
from swiftkv.sources import check_checkpoint

if TYPE_CHECKING:
    from swiftkv.config import Config

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # a folder that has one of these has a tokenizer


def check_local_sources(config: Config, directory: Path = Path()) -> None:
    """Look at every local source of a checked configuration.

    Args:
        config: the configuration.
        directory: the folder that the run works in, from which relative paths are meant.

    Raises:
        UserError: one is not there, is incomplete, or has other dimensions than stated; the sentence names the key.
    """
    for place, source, layers in _sources(config):
        if (local := getattr(source, "local", None)) is None:
            continue
        path = directory / Path(local).expanduser()
        try:
            if not path.exists():
                raise UserError(f"{local!r} does not exist; check `local`")
            of_model = place.startswith("models.") and place.endswith((".source", ".chat_template"))
            if of_model and not any((path / file).is_file() for file in TOKENIZERS):
                raise UserError(f"{path} has no tokenizer: none of {', '.join(TOKENIZERS)}")
            if layers is not None:
                check_checkpoint(path)
                if (own := read_json(path / "config.json").get("num_hidden_layers")) != layers:
                    raise UserError(f"{path} has {own} layers, but num_hidden_layers is {layers}")
        except UserError as error:
            raise UserError(f"config, at {place}: {error}") from None


def _sources(config: Config) -> Iterator[tuple[str, Section | None, int | None]]:
    """Place and source of all that may be read, and how many layers it has, where it is a checkpoint."""
    for name, model in config.models.items():
        yield f"models.{name}.source", model.source, model.num_hidden_layers
        yield f"models.{name}.chat_template", model.chat_template, None
        for variant, source in model.checkpoints.items():
            yield f"models.{name}.checkpoints.{variant}", source, model.num_hidden_layers
    for name, mix in config.data.items():
        for number, source in enumerate(mix.sources):
            yield f"data.{name}.sources.{number}", source, None
    for name, task in config.tasks.items():
        yield f"tasks.{name}.source", task.source, None
