"""A function's command line: its signature says which options there are, its docstring what they mean.

A parameter `max_length: int` is `--max-length INT`, required without a default. Mappings, lists of mappings and dataclasses
are JSON. An option of a value that may be missing, `Path | None`, may stand without one, as a rule writes it whose input is
empty. A truth value is `True` or `False`.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import json
import types
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from swiftkv.errors import UserError
from swiftkv.section import Section

REGISTRY = ConstructorRegistry()


def call(function: Callable[..., Any], words: Sequence[str], program: str) -> Any:
    """Call a function with the arguments of a command line.

    Args:
        function: public, with type hints and Google's docstring.
        words: the command line without the program.
        program: what help and errors call it.

    Raises:
        SystemExit: the command line is wrong, or asks for help; stderr or stdout says what there is.
    """
    config = (tyro.conf.FlagConversionOff,)
    return tyro.cli(function, prog=program, args=list(words), registry=REGISTRY, config=config)


def take_machine(words: Sequence[str]) -> tuple[int | None, int | None, list[str]]:
    """Take `--threads` and `--gpus` out of a command line: those two, None where they are not given, and the rest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gpus", type=int)
    options, rest = parser.parse_known_args(words)
    return options.threads, options.gpus, rest


@REGISTRY.primitive_rule
def _may_be_missing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """`T | None`: an option with one value or none."""
    kinds = [kind for kind in get_args(info.type) if kind is not types.NoneType]
    if len(kinds) != 1 or types.NoneType not in get_args(info.type) or _is_json(kinds[0]):
        return None

    def read(words: list[str]) -> Any:
        if len(words) > 1:
            raise ValueError(f"one value at most, not {' '.join(words)}")
        return kinds[0](words[0]) if words else None

    return _spec("*", f"[{kinds[0].__name__.upper()}]", read)


@REGISTRY.primitive_rule
def _json(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if not _is_json(info.type):
        return None
    kind = next(filter(_is_class, get_args(info.type)), info.type)

    def read(words: list[str]) -> Any:
        content = json.loads(words[0])
        if content is None or not _is_class(kind):
            return content
        try:
            return kind.from_dict(content) if issubclass(kind, Section) else kind(**content)
        except (TypeError, ValueError) as error:
            raise UserError(f"{kind.__name__} {words[0]}: {error}") from None

    return _spec(1, "JSON", read)


def _is_class(kind: Any) -> bool:
    """Return True if JSON's keys are the fields of a dataclass or of a section of the configuration."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Section))


def _is_json(kind: Any) -> bool:
    """Return True if a type is a mapping or such a class, or made of such."""
    mapping = get_origin(kind) in (dict, collections.abc.Mapping) or kind is dict
    return mapping or _is_class(kind) or any(map(_is_json, get_args(kind)))


def _spec(nargs: Any, metavar: str, read: Callable[[list[str]], Any]) -> PrimitiveConstructorSpec:
    return PrimitiveConstructorSpec(nargs, metavar, read, lambda value: True, lambda value: [str(value)])
