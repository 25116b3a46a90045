"""Differences of two scores on the same questions, and which scores may be averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swiftkv.artifacts.records import Record
from swiftkv.artifacts.scored import Row, Tasks, averaged_tasks, in_bits
from swiftkv.errors import UserError

ERRORS = 2  # standard errors from which on a difference is taken for one


class Difference(NamedTuple):
    """A mean difference and its standard error, in the unit of the scores."""

    value: float
    stderr: float | None

    @property
    def clear(self) -> bool:
        """Whether it is more than `ERRORS` standard errors above zero."""
        return self.stderr is not None and self.value > ERRORS * self.stderr


def difference(task: str, first: Record, second: Record) -> Difference:
    """Mean over questions of the first score minus the second, with the standard error of that mean.

    Where no question comes out differently, that error would be 0. It then is that of a sample with one question more
    that the first alone gets right and one that the second alone does.

    Raises:
        UserError: the questions, prompts or expected answers were not the same.
    """
    questions = [record["result"].get("questions") for record in (first, second)]
    if None in questions or questions[0]["sha256"] != questions[1]["sha256"]:
        names = " and ".join(record["variant"] for record in (first, second))
        raise UserError(f"task {task!r} did not ask {names} the same questions in the same way; score both again")
    apart = [mine - theirs for mine, theirs in zip(*(asked["values"] for asked in questions), strict=True)]
    mean, number = math.fsum(apart) / len(apart), len(apart)
    if number < 2:
        return Difference(mean, None)
    if not any(apart):
        return Difference(mean, math.sqrt(2 / (number + 1) / (number + 2)))
    return Difference(mean, math.sqrt(math.fsum((one - mean) ** 2 for one in apart) / (number - 1) / number))


def row_difference(task: str, first: Row, second: Row) -> Difference | None:
    """The difference of two rows on a task; None where one of them has no score."""
    records = first.score(task), second.score(task)
    return difference(task, *records) if all(records) else None


def average_difference(averaged: Sequence[str], first: Row, second: Row) -> Difference | None:
    """The mean of the differences over tasks, whose questions are independent samples."""
    found = [row_difference(task, first, second) for task in averaged]
    if not found or None in found:
        return None
    mean = math.fsum(one.value for one in found) / len(found)
    if any(one.stderr is None for one in found):
        return Difference(mean, None)
    return Difference(mean, math.sqrt(math.fsum(one.stderr**2 for one in found)) / len(found))


def above_chance(found: Sequence[Row], baseline: Row | None, tasks: Tasks) -> list[str]:
    """Tasks that every row has an accuracy in and the baseline is clearly better than guessing: what is averaged."""

    def clear(task: str) -> bool:
        result, chance = (baseline.score(task) or {}).get("result"), tasks[task].get("chance", 0.0)
        return bool(result) and Difference(result["value"] - chance, result["stderr"]).clear

    accuracies: Iterable[str] = [task for task in tasks if not in_bits(tasks[task])]
    return [task for task in averaged_tasks(found, accuracies) if baseline is not None and clear(task)]
