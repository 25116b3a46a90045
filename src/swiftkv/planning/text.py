"""How much text there is: tokens a chat, tokens of a mix, packed rows. Counted where it is on disk, else as assumed."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftkv import config as cfg
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError


def chat_tokens(config: Mapping[str, Any], mix: str, longest: int) -> float:
    """Mean tokens of a chat of a data mix, cut at `longest`.

    Raises:
        UserError: the mix has no entry under planning.data.
    """
    return min(_assumed(config, mix, "chat_tokens"), longest)


def mix_tokens(config: Mapping[str, Any], mix: str) -> float:
    """Tokens of a data mix.

    Raises:
        UserError: the mix has no entry under planning.data.
    """
    return _assumed(config, mix, "tokens")


def _assumed(config: Mapping[str, Any], mix: str, what: str) -> float:
    if mix not in config["planning"]["data"]:
        raise UserError(f"nothing says how long data mix {mix!r} is before it is built; state it under planning.data")
    return config["planning"]["data"][mix][what]["value"]


def recipe_of(config: dict[str, Any], model: str, name: str) -> Recipe:
    """A recipe as the trainer takes it."""
    return Recipe.from_dict(cfg.recipe(config, model, name))


def packed_rows(config: dict[str, Any], recipe: Recipe, packed: str | None) -> int:
    """Rows that a recipe trains on: of the packed file if there is one, else from the tokens of its mix."""
    if packed and Path(packed).exists():
        return safetensors_shape(Path(packed), "input_ids")[0]
    whole = math.ceil(mix_tokens(config, recipe.data) / recipe.max_length)
    # Packing stops when there is enough for all steps.
    return whole if recipe.max_steps is None else min(whole, recipe.max_steps * recipe.batch_size)


def trained_tokens(config: dict[str, Any], recipe: Recipe, packed: str | None) -> int:
    """Tokens that go through a training, padding included."""
    steps = recipe.total_steps(packed_rows(config, recipe, packed))
    return steps * recipe.batch_size * recipe.max_length


def safetensors_shape(file: Path, name: str) -> list[int]:
    """Shape of a tensor, from the file's header alone."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        return json.loads(stream.read(length))[name]["shape"]
