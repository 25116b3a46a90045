"""A run's lines on the terminal: a line a step with the time left, what a failure takes with it, and the summary."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.run.jobs import PlannedJob, Profile
from pipeline.run.progress import Progress
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
    return Progress(JOBS, SECONDS, logs, Profile(Path(), cores=2), results, lambda: clock.now)


def say(progress, number, text):
    Path(*progress.logs[number]).write_text(text)


def test_the_time_left_is_the_plan_s_at_the_pace_of_what_is_done(progress, clock):
    assert progress.left() == 902  # the longest chain
    progress.start(TRAIN)
    progress.fail(TRAIN)
    assert progress.left() == pytest.approx(2)  # what can be made without it
    progress.start(TRAIN)  # a step that is tried again counts again
    assert progress.left() == 902 and not any(line.startswith("  failed") for line in progress.summary())
    clock.now += 300
    assert progress.left() == pytest.approx(602)
    clock.now += 900  # twice the estimate
    progress.finish(TRAIN)
    assert progress.left() == pytest.approx(2 * 302)
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


def test_a_step_that_runs_long_says_so_in_a_file(progress, clock):
    progress.start(TRAIN)
    say(progress, TRAIN, "training: step 1/2\n")
    clock.now += 59
    progress.start(OTHER)
    found = [progress.long_running()]
    for seconds in (1, 30, 270, 40, 260):  # 60, 90, 360, 400 and 660 s after its start
        clock.now += seconds
        progress.finish(OTHER)
        found.append(progress.long_running())
    assert [len(lines) for lines in found] == [0, 1, 0, 1, 0, 1]
    assert found[1][0].endswith("still running: distill m v, 60 s: training: step 1/2")


def test_the_summary_has_times_by_rule_a_place_to_look_and_what_can_go(progress, clock, tmp_path):
    state = tmp_path / "results/training-state/m/v"
    state.mkdir(parents=True)
    (state / "weights").write_bytes(bytes(2 * 10**8))
    for number, seconds in ((OTHER, 1), (TRAIN, 660), (SCORE, 150), (TABLE, 3)):
        progress.start(number)
        clock.now += seconds
        progress.finish(number)
    first, rules, look, disk = (" ".join(line.split()) for line in progress.summary())
    assert first.startswith("Done after 14 min: 4 of 4 steps, 2 of 2 tables and figures made")
    assert rules == "time distill 11 min; fidelity 2 min; table 3 s; figure 1 s"
    assert look == "look first r/figure1.png"
    assert disk.startswith("disk 0.2 GB") and disk.endswith(f"rm -r {tmp_path}/results/training-state")


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
    assert hear("all finished", event=LogEvent.JOB_FINISHED, job_id=99) == ""
    assert hear("Missing output files: ...", logging.ERROR, event=LogEvent.ERROR).startswith("Missing output")
    assert "disk is nearly full" in hear("disk is nearly full", logging.WARNING)
    assert hear("Terminating processes on user request, this might take some time.")
    assert hear("Error in rule figure", logging.ERROR, event=LogEvent.JOB_ERROR, jobid=OTHER, log=[]) == ""
    handler.close()
    handler.close()
    assert capsys.readouterr().err.count("Not finished after") == 1
