"""A run's lines on the terminal: a line a step with the time left, what a failure takes with it, and the summary."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.run.jobs import PlannedJob, Profile
from pipeline.run.progress import RunProgress
from snakemake_logger_plugin_swiftkv import LogHandler

TRAIN, SCORE, TABLE, OTHER = 7, 3, 11, 5  # Snakemake numbers jobs as it likes
MODEL = {"model": "m", "variant": "v"}
JOBS = {
    TRAIN: PlannedJob("distill", MODEL, (), ("checkpoint",)),
    SCORE: PlannedJob("fidelity", MODEL, ("checkpoint",), ("r/fidelity.json",)),
    TABLE: PlannedJob("table", {"artifact": "table2"}, ("r/fidelity.json",), ("r/table2.csv", "r/table2.md")),
    OTHER: PlannedJob("figure", {"artifact": "figure1"}, (), ("r/figure1.pdf", "r/figure1.png")),
}
SECONDS = dict(zip(JOBS, (600, 300, 2, 2), strict=True))


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def progress(clock, tmp_path):
    logs = {number: [str(tmp_path / f"{number}.log")] for number in JOBS}
    results = str(tmp_path / "results")
    return RunProgress(JOBS, SECONDS, logs, Profile(Path(), cores=2), results, lambda: clock.now)


def say(progress, number, text):
    Path(*progress.logs[number]).write_text(text)


def test_the_time_left_is_the_plan_s(progress, clock):
    assert progress.left() == 902  # the longest chain
    progress.start(TRAIN)
    progress.fail(TRAIN)
    assert progress.left() == pytest.approx(2)  # what can be made without it
    progress.start(TRAIN)  # a step that is tried again counts again
    assert progress.left() == 902 and not any(line.startswith("  failed") for line in progress.summary())
    clock.now += 300
    assert progress.left() == pytest.approx(602)
    clock.now += 900  # twice the estimate
    assert progress.left() == pytest.approx(60 + 302)
    progress.finish(TRAIN)
    assert progress.left() == pytest.approx(302)
    for number in (SCORE, TABLE, OTHER):
        progress.start(number)
        progress.finish(number)
    assert progress.left() == 0


@pytest.mark.parametrize(("busy", "said"), [(60.0, True), (4.0, False)])
def test_a_run_that_would_measure_beside_other_programs_says_so(progress, monkeypatch, busy, said):
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: busy)
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    assert "cores busy" not in progress.beginning()  # nothing is measured
    progress.jobs = JOBS | {1: PlannedJob("measure", MODEL)}
    assert ("keep 1.2 cores busy" in progress.beginning()) == said


def test_the_summary_has_times_by_rule(progress, clock):
    for number, seconds in ((OTHER, 1), (TRAIN, 660), (SCORE, 150), (TABLE, 3)):
        progress.start(number)
        clock.now += seconds
        progress.finish(number)
    first, rules = (" ".join(line.split()) for line in progress.summary())
    assert first.startswith("Done after 14 min: 4 of 4 steps, 2 of 2 tables and figures made")
    assert rules == "time distill 11 min; fidelity 2 min; table 3 s; figure 1 s"


def test_a_run_names_the_place_to_look_only_where_there_is_one(progress):
    progress.start(OTHER)
    progress.finish(OTHER)
    assert progress.summary()[-1].split() == ["look", "first", "r/figure1.png"]
    progress.start(TABLE)
    progress.finish(TABLE)
    assert not any("look first" in line for line in progress.summary())


# Snakemake's events


def test_what_snakemake_warns_of_is_said_and_a_failure_s_end_once(progress, capsys):
    settings = SimpleNamespace(
        nocolor=True, stdout=False, dryrun=False, quiet=set(), show_failed_logs=False, debug_dag=False, verbose=False
    )
    handler = LogHandler(settings, None)
    handler.setFormatter(logging.Formatter())

    def hear(message=None, level=logging.INFO, **more):
        record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
        vars(record).update(more)
        handler.handle(record)
        return capsys.readouterr().err

    hear("4 steps", progress=progress)
    begun = hear(event=LogEvent.JOB_INFO, jobid=TRAIN)
    assert "distill m v, about 10 min" in begun and progress.logs[TRAIN][0] in begun
    assert hear(event=LogEvent.JOB_INFO, jobid=OTHER) == hear(event=LogEvent.JOB_INFO, jobid=99) == ""
    assert hear("all finished", event=LogEvent.JOB_FINISHED, job_id=99) == ""
    assert hear("Missing output files: ...", logging.ERROR, event=LogEvent.ERROR).startswith("Missing output")
    assert "disk is nearly full" in hear("disk is nearly full", logging.WARNING)
    assert hear("Terminating processes on user request, this might take some time.")
    assert hear("Error in rule figure", logging.ERROR, event=LogEvent.JOB_ERROR, jobid=OTHER, log=[]) == ""
    handler.close()
    handler.close()
    assert capsys.readouterr().err.count("Not finished after") == 1
