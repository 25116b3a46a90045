"""Stop the retries of a job that would fail again."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from swiftkv.io import text_of

LOG_SECONDS = 3  # until what a job wrote at its end is in its log


def own_error(lines: Iterable[str]) -> str | None:
    """Return the last error sentence that a program of this project wrote to its log; None if there is none."""
    return next((line.removeprefix("error: ") for line in [*lines][::-1] if line.startswith("error: ")), None)


class Retries:
    """A filter of Snakemake's logger, which ends the attempts of a job that fails twice in a row with the same sentence.

    A crash has no sentence, and a training that was stopped names its last step, so those are tried again.

    Args:
        workflow: Snakemake's.
    """

    def __init__(self, workflow: Any) -> None:
        self.workflow = workflow
        self.errors: dict[int, tuple[str | None, int]] = {}  # by job: its last error, and when it was written

    def __call__(self, record: logging.LogRecord) -> bool:
        """Look at the record of a failed job; return True, so that it is shown."""
        if getattr(record, "event", None) == LogEvent.JOB_ERROR:
            dag = self.workflow.dag
            for job in [job for job in dag.jobs if job.log and dag.jobid(job) == record.jobid]:
                self._judge(job, record.jobid, Path(job.log[0]))
        return True

    def _judge(self, job: Any, number: int, log: Path) -> None:
        end = time.monotonic() + LOG_SECONDS
        while not (error := own_error(text_of(log).splitlines())) and time.monotonic() < end:
            time.sleep(0.1)
        written = log.stat().st_mtime_ns if error else 0
        before = self.errors.get(number, (None, 0))
        self.errors[number] = error, written
        # A log that is as old as before is of the attempt before.
        if error and error == before[0] and written > before[1] and job.attempt <= job.restart_times:
            job.attempt = 1 + job.restart_times
            print(f"rule {job.rule.name} is not tried again, as it failed twice with: {error}", file=sys.stderr)
