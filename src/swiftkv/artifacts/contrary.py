"""What of a quality table points against the paper: said below it, also where benchmarks of a small model cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

from swiftkv.artifacts.kind import Config, Entry
from swiftkv.artifacts.paired import closeness_difference
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
    """Of each pair whose second variant is clearly nearer to the teacher on the same chats: by how much.

    Args:
        better: pairs of variants of which the paper has the first better.
    """
    notes = []
    for title in dict.fromkeys(row.model["title"] for row in rows):
        shown = {
            row.variant: row for row in rows if row.model["title"] == title and row.kv_cache == "auto" and row.closeness
        }
        for first, second in better:
            if first not in shown or second not in shown:
                continue
            apart = closeness_difference("kl", shown[first], shown[second])
            if apart is not None and apart.clear:
                kl, top = (
                    [with_error(*_number(shown[name], measure), ".3f") for name in (second, first)]
                    for measure in ("kl", "top1_agreement")
                )
                notes.append(
                    f"Against the paper, {second} is nearer to the teacher than {first}: KL {kl[0]} against {kl[1]}, less by "
                    f"{with_error(*apart, '.3f')} on the same chats, top-1 agreement {top[0]} against {top[1]}. The paper's "
                    "order is by the average of its benchmarks."
                )
    return notes


def _number(row: Row, measure: str) -> tuple[float, float | None]:
    return row.closeness[measure]["value"], row.closeness[measure]["stderr"]
