"""What can be known of local sources before any work: that they are there, and are what the configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.sources import check_checkpoint
from swiftkv.architectures import architecture
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.section import Section

if TYPE_CHECKING:
    from pipeline.config import Config

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # a folder that has one of these has a tokenizer


def check_local_sources(config: Config, directory: Path = Path()) -> None:
    """Look at every local source of a checked configuration.

    Args:
        config: the configuration.
        directory: the folder that the run works in, from which relative paths are meant.

    Raises:
        UserError: one is not there, is incomplete, or has other dimensions than stated; the sentence names the key.
    """
    for place, source, layers, template in _sources(config):
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
            check_description(path, str(path), layers, template=of_model and template)
        except UserError as error:
            raise UserError(f"config, at {place}: {error}") from None


def check_description(folder: Path, name: str, layers: int | None, *, template: bool) -> None:
    """Refuse a model that cannot be rewired or trained, by the small files that describe it.

    Args:
        folder: has its config.json and tokenizer_config.json.
        name: what the sentence calls it.
        layers: how many it must have; None where its layers are not used.
        template: whether its chat template is used.

    Raises:
        UserError: its architecture is unknown, it has another number of layers, or no chat template.
    """
    if layers is not None:
        config = read_json(folder / "config.json")
        try:
            architecture(config.get("model_type"))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if (own := config.get("num_hidden_layers")) != layers:
            raise UserError(f"{name} has {own} layers, but num_hidden_layers is {layers}")
    settings = folder / "tokenizer_config.json"
    stated = settings.is_file() and read_json(settings).get("chat_template")
    if template and not stated and not (folder / "chat_template.jinja").is_file():
        raise UserError(
            f"the tokenizer of {name} has no chat template: use an instruction-tuned model, or name one as the "
            "`chat_template` of this one in the config"
        )


def _sources(config: Config) -> Iterator[tuple[str, Section | None, int | None, bool]]:
    """Place and source of all that may be read, how many layers it has, and whether its chat template is used."""
    for name, model in config.models.items():
        yield f"models.{name}.source", model.source, model.num_hidden_layers, model.chat_template is None
        yield f"models.{name}.chat_template", model.chat_template, None, True
        for variant, source in model.checkpoints.items():
            yield f"models.{name}.checkpoints.{variant}", source, model.num_hidden_layers, False
    for name, mix in config.data.items():
        for number, source in enumerate(mix.sources):
            yield f"data.{name}.sources.{number}", source, None, False
    for name, task in config.tasks.items():
        yield f"tasks.{name}.source", task.source, None, False
