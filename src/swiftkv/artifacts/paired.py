"""Two rows of a quality table on the same questions: mean differences with their paired errors, and answers that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from swiftkv.artifacts.columns import Column, Line, measured
from swiftkv.artifacts.scored import Row, Tasks, outcomes, unit
from swiftkv.artifacts.table import Footnotes
from swiftkv.errors import UserError
from swiftkv.statistics import Difference, flips, mean_of, paired_difference


def reference(row: Row, found: Sequence[Row]) -> Row | None:
    """What a row is compared with; None where there is nothing.

    That is the same variant without the FP8 cache, else the unchanged model of its part, else the last row of that part.
    """
    part = [other for other in found if other.model == row.model and other.part == row.part and other.known]
    plain = [
        other for other in part if row.kv_cache == "fp8" and (other.variant, other.kv_cache) == (row.variant, "auto")
    ]
    unchanged = [other for other in part if other.spec is None and other.kv_cache == "auto"]
    chosen = next(iter([*plain, *unchanged, *part[-1:]]), None)
    return None if chosen is row else chosen


def tasks_in_pairs(tasks: Tasks, found: Sequence[Row]) -> dict[str, Mapping[str, Any]]:
    """The tasks of which every score says what each of its questions got."""
    scores = {task: [row.scores[task] for row in found if row.scores[task].ok] for task in tasks}
    return {task: tasks[task] for task in tasks if scores[task] and all(one.value("questions") for one in scores[task])}


def compare(first: Row, second: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """Further cells of a line: first minus second in the unit of each score, and percent of answers that changed."""
    cells = _cells("average", average_difference(averaged, first, second), 100)
    for task, asked in tasks.items():
        cells |= _cells(task, difference(task, first, second), unit(asked))
        right = [outcomes(row.scores[task]) for row in (first, second)]
        if None not in right:
            cells[f"{task}_changed"] = 100 * flips(*right)
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


def difference(task: str, first: Row, second: Row) -> Difference | None:
    """The first score minus the second, as `paired_difference` of their questions; None where a row has no score.

    Raises:
        UserError: the questions, prompts or expected answers were not the same.
    """
    records = first.scores[task], second.scores[task]
    if not all(record.ok for record in records):
        return None
    questions = [record.value("questions") for record in records]
    if None in questions or questions[0]["sha256"] != questions[1]["sha256"]:
        raise UserError(
            f"task {task!r} did not ask {first.variant} and {second.variant} the same questions in the same way; "
            "score both again"
        )
    return paired_difference(*(asked["values"] for asked in questions))


def average_difference(averaged: Sequence[str], first: Row, second: Row) -> Difference | None:
    """The mean of the differences over tasks, whose questions are independent samples."""
    differences = [difference(task, first, second) for task in averaged]
    return mean_of(differences) if differences and None not in differences else None
