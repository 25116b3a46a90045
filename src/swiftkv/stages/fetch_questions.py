"""Fetches the questions of a task that come from the hub."""

from __future__ import annotations

from swiftkv.pricing.work import Download, Work, download
from swiftkv.score.catalogue import KNOWN
from swiftkv.stages.stage import Stage


def downloads(work: Work) -> list[Download]:
    """The task's data set, as configured or as lm-eval has it; of a task that the catalogue lacks only its name is said."""
    task = work.config.tasks[work["task"]]
    if task.source:
        return download("questions", task.source)
    return [Download("questions", KNOWN[task.task].hub if task.task in KNOWN else task.task)]


STAGE = Stage(
    name="fetch_questions",
    output="questions/{task}",
    run="swiftkv.score.fetch:fetch_questions",
    online=True,
    downloads=downloads,
)
