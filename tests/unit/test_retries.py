"""A job that fails twice with the same sentence of its own is not tried a third time."""

import logging
import os
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.run import retries


@pytest.mark.parametrize(
    ("first", "second", "attempt"),
    [
        ("error: no tensor x", "error: no tensor x", 4),
        ("error: step 3", "error: step 4", 2),
        ("KeyError: 'x'", "KeyError: 'x'", 2),
        ("error: no tensor x", None, 2),  # killed before it wrote anything
    ],
)
def test_the_same_sentence_twice_ends_the_attempts(tmp_path, monkeypatch, first, second, attempt):
    monkeypatch.setattr(retries, "LOG_SECONDS", 0)
    log = tmp_path / "log"
    job = SimpleNamespace(log=[log], attempt=1, restart_times=3, rule=SimpleNamespace(name="similarity"))
    judge = retries.Retries(SimpleNamespace(dag=SimpleNamespace(jobs=[job], jobid=lambda job: 7)))
    for job.attempt, line in enumerate((first, second), start=1):
        if line is not None:
            log.write_text(f"starts\n{line}\n")
            os.utime(log, (job.attempt, job.attempt))
        assert judge(SimpleNamespace(event=LogEvent.JOB_ERROR, jobid=7))
    assert job.attempt == attempt
    assert judge(logging.makeLogRecord({"msg": "of another kind"}))
