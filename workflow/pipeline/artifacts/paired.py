"""Two rows of a quality table on the same questions and chats: mean differences with paired errors, answers that changed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.artifacts.columns import Column, Line, measured
from pipeline.artifacts.scored import CLOSENESS, Row, Tasks, outcomes, unit
from pipeline.artifacts.table import Footnotes
from pipeline.statistics import Difference, flips, mean_of, paired_difference, ratio
from swiftkv.errors import UserError

_NAMES = ("model", "part", "variant", "kv_cache")  # of the row that a line is against
_CLOSE = ("kl", "top1_agreement")  # measures of closeness that add up over positions


def reference(row: Row, found: Sequence[Row]) -> Row | None:
    """What a row is compared with; None where there is nothing.

    That is the same variant without the FP8 cache, else the unchanged model of its part, else the last row of that part.
    """
    part = [other for other in found if other.model == row.model and other.part == row.part and other.known]
    plain = [
        other for other in part if row.kv_cache == "fp8" and (other.variant, other.kv_cache) == (row.variant, "auto")
    ]
    unchanged = [other for other in part if other.spec is None and other.kv_cache == "auto"]
    last = [other for other in part if other.kv_cache == "auto"][-1:]
    chosen = next(iter([*plain, *unchanged, *last]), None)
    return None if chosen is row else chosen


def lines(found: Sequence[Row], tasks: Tasks, averaged: Sequence[str]) -> list[dict[str, Any]]:
    """Lines of the CSV: every two rows that have something of the same questions or chats, the first minus the second.

    The second is named in the columns `against_model`, `against_part`, `against_variant` and `against_kv_cache`.
    """
    every = []
    for first, second in itertools.combinations([row for row in found if row.known], 2):
        cells = compare(first, second, tasks, averaged, strict=False)
        if any(cell is not None for key, cell in cells.items() if not key.startswith("_")):
            against = {f"against_{name}": second.head[name] for name in _NAMES if name in second.head}
            every.append({"row": "difference", **first.head, **against, **cells})
    return every


def compare(
    first: Row, second: Row, tasks: Tasks, averaged: Sequence[str], *, strict: bool = True
) -> dict[str, float | bool | None]:
    """Cells of first minus second, in the unit of each score, and percent of the answers that changed.

    Args:
        first, second: the rows.
        tasks: those to compare.
        averaged: those whose mean is compared.
        strict: whether other questions are an error, and not an empty cell.

    Raises:
        UserError: the questions, prompts or expected answers were not the same.
    """
    apart = {task: difference(task, first, second, strict=strict) for task in tasks}
    mean = [apart.get(task) for task in averaged]
    known = [one for one in mean if one is not None]
    cells = _cells("average", mean_of(known) if mean and len(known) == len(mean) else None, 100)
    for task, asked in tasks.items():
        cells |= _cells(task, apart[task], unit(asked))
        right = [outcomes(row.scores[task]) for row in (first, second)]
        if apart[task] is not None and None not in right:
            cells[f"{task}_changed"] = 100 * flips(*right)
    for measure in _CLOSE:
        if (closer := closeness_difference(measure, first, second)) is not None:
            cells |= _cells(measure, closer, CLOSENESS[measure][0])
    return cells


def _cells(name: str, apart: Difference | None, scale: float) -> dict[str, Any]:
    name = f"{name}_difference"
    return measured(name, apart, scale) | {f"_{name}_in_noise": apart is not None and apart.within_noise}


def columns(scores: Sequence[Column]) -> list[Column]:
    """A column of differences for each of scores."""
    return [Column(column.header, partial(_printed, column)) for column in scores]


def _printed(column: Column, line: Line) -> str | None:
    apart = Column(column.header, f"{column.value}_difference", f"+{column.text}")
    if line.get(apart.value) is None:
        return None
    changed = line.get(f"{column.value}_changed")
    return apart.cell(line, Footnotes()) + ("" if changed is None else f" ({changed:.0f}%)")


def difference(task: str, first: Row, second: Row, *, strict: bool = True) -> Difference | None:
    """The first score minus the second, as `paired_difference` of their questions; None where a row has no score.

    Raises:
        UserError: as `compare`.
    """
    records = first.scores[task], second.scores[task]
    if not all(record.ok for record in records):
        return None
    questions = [record.value("questions") for record in records]
    if None not in questions and questions[0]["sha256"] == questions[1]["sha256"]:
        return paired_difference(*(asked["values"] for asked in questions))
    if not strict:
        return None
    raise UserError(
        f"task {task!r} did not ask {first.variant} and {second.variant} the same questions in the same way; "
        "score both again"
    )


def closeness_difference(measure: str, first: Row, second: Row) -> Difference | None:
    """The first's closeness minus the second's, over the same chats; None where the records do not say what each chat has."""
    chats: list[Mapping[str, Any]] = [row.closeness.get("chats") or {} for row in (first, second)]
    if not all(chats) or chats[0]["positions"] != chats[1]["positions"] or first.model != second.model:
        return None
    apart = [mine - other for mine, other in zip(*(one[measure] for one in chats), strict=True)]
    found = ratio(apart, chats[0]["positions"])
    return Difference(found["value"], found["stderr"])
