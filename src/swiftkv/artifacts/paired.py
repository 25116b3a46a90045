"""Differences of two scores on the same questions, and which scores may be averaged."""

from __future__ import annotations

from collections.abc import Sequence

from swiftkv.artifacts.records import Record
from swiftkv.artifacts.scored import Row, Tasks, averaged_tasks, in_bits
from swiftkv.errors import UserError
from swiftkv.statistics import Difference, mean_of, paired_difference


def difference(task: str, first: Record, second: Record) -> Difference:
    """The first score minus the second, as `paired_difference` of their questions.

    Raises:
        UserError: the questions, prompts or expected answers were not the same.
    """
    questions = [record.value("questions") for record in (first, second)]
    if None in questions or questions[0]["sha256"] != questions[1]["sha256"]:
        raise UserError(
            f"task {task!r} did not ask {first.variant} and {second.variant} the same questions in the same way; "
            "score both again"
        )
    return paired_difference(*(asked["values"] for asked in questions))


def row_difference(task: str, first: Row, second: Row) -> Difference | None:
    """The difference of two rows on a task; None where one of them has no score."""
    records = first.scores[task], second.scores[task]
    return difference(task, *records) if all(record.ok for record in records) else None


def average_difference(averaged: Sequence[str], first: Row, second: Row) -> Difference | None:
    """The mean of the differences over tasks, whose questions are independent samples."""
    differences = [row_difference(task, first, second) for task in averaged]
    return mean_of(differences) if differences and None not in differences else None


def above_chance(found: Sequence[Row], baseline: Row | None, tasks: Tasks) -> list[str]:
    """Tasks that every row has an accuracy in and the baseline is clearly better than guessing: what is averaged."""

    def clear(task: str) -> bool:
        score = baseline.scores[task].result
        return bool(score) and Difference(score["value"] - tasks[task].get("chance", 0.0), score["stderr"]).clear

    accuracies = [task for task in tasks if not in_bits(tasks[task])]
    return [task for task in averaged_tasks(found, accuracies) if baseline is not None and clear(task)]
