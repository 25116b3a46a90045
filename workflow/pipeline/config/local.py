"""Check before any work that local sources exist and are what the configuration says."""

from __future__ import annotations

from pathlib import Path

from pipeline import shipped
from pipeline.config import Config
from pipeline.config.checks import at
from pipeline.sources import check_checkpoint, check_description
from swiftkv.errors import UserError
from swiftkv.section import Section

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # a folder that has one of these has a tokenizer


def check_local_sources(config: Config, directory: Path = Path()) -> None:
    """Look at every local source of a checked configuration.

    Args:
        config: the configuration.
        directory: the folder that the run works in, from which relative paths are meant.

    Raises:
        UserError: one is not there, is incomplete, or has other dimensions than stated; the sentence names the key.
    """
    for name, model in config.models.items():
        with at(f"models.{name}.source"):
            if folder := _local(model.source, directory):
                _check_tokenizer(folder)
                check_checkpoint(folder)
                check_description(
                    folder,
                    str(folder),
                    model.num_hidden_layers,
                    template=model.chat_template is None,
                    processor=model.gpus.serve == 0 and not model.unmeasured("serving"),
                )
        with at(f"models.{name}.chat_template"):
            if folder := _local(model.chat_template, directory):
                _check_tokenizer(folder)
                check_description(folder, str(folder), None, template=True)
        for variant, source in model.checkpoints.items():
            with at(f"models.{name}.checkpoints.{variant}"):
                if folder := _local(source, directory):
                    check_checkpoint(folder)
                    check_description(folder, str(folder), model.num_hidden_layers, template=False)
    others = {f"tasks.{name}.source": task.source for name, task in config.tasks.items()}
    for name, mix in config.data.items():
        others |= {f"data.{name}.sources.{number}": source for number, source in enumerate(mix.sources)}
    for place, source in others.items():
        with at(place):
            _local(source, directory)


def _local(source: Section | None, directory: Path) -> Path | None:
    """Return the path of a local source, None for another; raise a `UserError` if it does not exist."""
    if (local := getattr(source, "local", None)) is None:
        return None
    path = directory / Path(shipped(local, directory)).expanduser()
    if not path.exists():
        raise UserError(f"{local!r} does not exist; check `local`")
    return path


def _check_tokenizer(folder: Path) -> None:
    if not any((folder / file).is_file() for file in TOKENIZERS):
        raise UserError(f"{folder} has no tokenizer: none of {', '.join(TOKENIZERS)}")
