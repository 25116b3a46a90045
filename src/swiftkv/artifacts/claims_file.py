"""Reading `resources/paper/claims.yaml`, the claims of the paper and the blog post; it says itself how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from swiftkv.errors import UserError

Claim = Mapping[str, Any]
# The quantities a claim may make of its cells.
HOW = ("cell", "difference", "ratio", "largest", "smallest", "rises")

_TEXT = {"type": "string"}
_CELL = {
    "type": "object",
    "additionalProperties": False,
    "required": ["artifact", "column", "where"],
    "properties": {
        "artifact": _TEXT,
        "column": _TEXT,
        "where": {"type": "object", "required": ["role"]},
        "along": _TEXT,
    },
}
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2, "items": _CELL}
_BOUND = {"type": ["number", "null"]}
_BOUNDS = {"type": "array", "minItems": 2, "maxItems": 2, "items": _BOUND}
_ROLES = {"type": "object", "additionalProperties": _TEXT}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["models", "benchmarks", "claims"],
    "properties": {
        "models": _ROLES,
        "benchmarks": {"type": "integer"},
        "claims": {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["id", "text", "place", "holds"],
                    "properties": {
                        **dict.fromkeys(("id", "text", "place", "note", "unit", "against"), _TEXT),
                        **dict.fromkeys(("cell", "largest", "smallest", "rises"), _CELL),
                        **dict.fromkeys(("difference", "ratio"), _PAIR),
                        "holds": {"anyOf": [_BOUNDS, _TEXT]},
                        "direction": _BOUNDS,
                        "hardware": {"type": "string", "pattern": r"^\d+ x \w+$"},
                    },
                    "oneOf": [{"required": [how]} for how in HOW],
                },
            },
        },
    },
}


def read_claims(path: str | Path) -> dict[str, Any]:
    """claims.yaml, checked.

    Raises:
        UserError: a missing file, or one that is not well-formed; the sentence names the place.
    """
    import jsonschema

    try:
        content = yaml.load(
            Path(path).read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(SCHEMA).iter_errors(content))
    if error is not None:
        raise UserError(f"{path}, at {'.'.join(map(str, error.absolute_path))}: {error.message}")
    return content


def cells(claim: Claim) -> list[Mapping[str, Any]]:
    """The cells a claim is about."""
    named = next(claim[how] for how in HOW if how in claim)
    return list(named) if isinstance(named, list) else [named]
