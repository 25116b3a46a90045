"""What of a quality table points against the paper: said below it, also where benchmarks of a small model cannot tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from swiftkv.artifacts.kind import Config, Entry
from swiftkv.artifacts.scored import Row
from swiftkv.artifacts.text import with_error
from swiftkv.errors import UserError


def pairs(config: Config, entry: Entry) -> list[list[str]]:
    """The pairs under `better` with this scale's stand-ins, doubles dropped; refuses variants that the entry does not show."""
    shown = {variant for scope in entry.get("parts", [entry]) for variant, _ in scope["cases"]}
    found = [[config["stand_ins"].get(name, name) for name in pair] for pair in entry["better"]]
    if unknown := [name for pair in found for name in pair if name not in shown]:
        raise UserError(f"artifacts.{entry['name']}: better names {unknown[0]!r}, which is not among its variants")
    return [list(pair) for pair in dict.fromkeys(map(tuple, found)) if pair[0] != pair[1]]


def contrary_notes(better: Sequence[Sequence[str]], rows: Sequence[Row]) -> list[str]:
    """Of each pair whose second variant is nearer to the teacher by more than a standard error: by how much.

    Args:
        better: pairs of variants of which the paper has the first better.
    """
    notes = []
    for title in dict.fromkeys(row.model["title"] for row in rows):
        shown = {
            row.variant: row.closeness
            for row in rows
            if row.model["title"] == title and row.kv_cache == "auto" and row.closeness
        }
        for first, second in better:
            if first in shown and second in shown and (apart := _apart(shown[first], shown[second])) > 1:
                notes.append(
                    f"Against the paper, {second} is nearer to the teacher than {first}: KL {_number(shown[second], 'kl')} "
                    f"against {_number(shown[first], 'kl')}, top-1 agreement {_number(shown[second], 'top1_agreement')} against "
                    f"{_number(shown[first], 'top1_agreement')}. In KL these are {apart:.1f} standard errors, counted as if the "
                    "chats were not the same. The paper's order is by the average of its benchmarks."
                )
    return notes


def _apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """How many standard errors the first has more KL than the second; 0 where no error is known."""
    errors = [one["kl"]["stderr"] for one in (first, second)]
    if None in errors or not any(errors):
        return 0.0
    return (first["kl"]["value"] - second["kl"]["value"]) / math.hypot(*errors)


def _number(closeness: Mapping[str, Any], measure: str) -> str:
    return with_error(closeness[measure]["value"], closeness[measure]["stderr"], ".3f")
