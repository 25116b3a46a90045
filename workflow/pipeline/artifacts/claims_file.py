"""Reading `resources/paper/claims.yaml`, the claims of the paper and the blog post; it says itself how they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, model_validator

from swiftkv.errors import UserError
from swiftkv.section import Section, Text, Whole, read

Claim = Mapping[str, Any]
Bounds = list[float | None]  # low and high; None is open
# The quantities a claim may make of its cells.
HOW = ("cell", "difference", "ratio", "largest", "smallest", "rises")


def _with_role(where: dict[str, Any]) -> dict[str, Any]:
    if "role" not in where:
        raise ValueError("needs the key 'role'")
    return where


def _number_of_gpus(text: str) -> str:
    if not re.fullmatch(r"\d+ x \w+", text):
        raise ValueError(f"{text!r} does not say how many of what, as in '8 x H100'")
    return text


def _paired(cells: list[_Cell]) -> list[_Cell]:
    if len(cells) not in (2, 4):
        raise ValueError(f"takes two cells, or four, not {len(cells)}")
    return cells


_Bounds = Annotated[Bounds, Field(min_length=2, max_length=2)]


class _Cell(Section):
    artifact: Text
    column: Text
    where: Annotated[dict[str, Any], AfterValidator(_with_role)]
    along: Text | None = None


class _Claim(Section):
    id: Text
    text: Text
    place: Text
    stated: _Bounds | Text | None = None
    loss: Annotated[float, Field(gt=0)] | None = None
    direction: _Bounds | None = None
    own: Literal[True] | None = None
    by: Literal["arithmetic", "count"] | None = None
    closeness: Literal[True] | None = None
    chosen: Text | None = None
    note: Text | None = None
    unit: Text | None = None
    against: Text | None = None
    cell: _Cell | None = None
    largest: _Cell | None = None
    smallest: _Cell | None = None
    rises: _Cell | None = None
    difference: Annotated[list[_Cell], AfterValidator(_paired)] | None = None
    ratio: Annotated[list[_Cell], Field(min_length=2, max_length=2)] | None = None
    hardware: Annotated[Text, AfterValidator(_number_of_gpus)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len([how for how in HOW if getattr(self, how)]) != 1:
            raise ValueError(f"needs exactly one of {', '.join(HOW)}")
        if (self.stated is None) == (self.loss is None):
            raise ValueError("needs either stated or loss")
        return self


class _Page(Section):
    models: dict[str, str]
    benchmarks: Whole
    resolution: Annotated[float, Field(gt=0)]
    requests: dict[str, dict[str, float]]
    claims: dict[str, list[_Claim]]


def read_claims(path: str | Path) -> dict[str, Any]:
    """claims.yaml, checked.

    Raises:
        UserError: a missing file, or one that is not well-formed; the sentence names the place.
    """
    try:
        content = yaml.load(
            Path(path).read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    return read(_Page, content, str(path)).model_dump(exclude_unset=True, exclude_none=True)


def cells(claim: Claim) -> list[Mapping[str, Any]]:
    """The cells a claim is about."""
    named = next(claim[how] for how in HOW if how in claim)
    return list(named) if isinstance(named, list) else [named]


def bounds(claim: Claim) -> tuple[Bounds | str, Bounds | None]:
    """What a claim states, and its weaker form, None without one; that of a loss is twice as large."""
    if "loss" in claim:
        return [None, claim["loss"]], [None, 2 * claim["loss"]]
    return claim["stated"], claim.get("direction")
