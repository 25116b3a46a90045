"""When a training saves its state and stops, by a clock that is moved by hand."""

from __future__ import annotations

import signal

import pytest

from swiftkv.distill import progress as module
from swiftkv.distill.progress import Clock


@pytest.fixture
def time(monkeypatch):
    """A clock that stands still until it is moved."""

    class Time:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

    time = Time()
    monkeypatch.setattr(module, "time", time)
    return time


def run(time, clock, step, save, steps=10**5):
    """Train until told to stop; when states were saved, in seconds since the start."""
    saved = []
    for _ in range(steps):
        time.now += step
        due, stop = clock.ask("cpu", 1)
        if due:
            time.now += save
            clock.saved()
            saved.append(time.now - 1000)
        if stop:
            assert stop == "before the time of its job ends"
            return saved
    return saved


@pytest.mark.parametrize(("step", "save"), [(5, 10), (600, 2000)])
def test_the_last_state_is_whole_before_the_job_ends(time, step, save):
    """However long a state takes, as long as one fits; and time is not thrown away."""
    saved = run(time, Clock(20, 1000.0, 24 * 60), step, save)
    left = 24 * 3600 - saved[-1]
    assert 0 <= left < 300 + 2 * save + 2 * step


def test_states_take_at_most_a_part_of_the_time(time):
    """A state of 405B that takes 15 minutes is not made every 20; one of seconds is."""
    for save, pause in ((900, 9000), (10, 1200)):
        time.now = 1000.0
        saved = run(time, Clock(20), 60, save, steps=1000)
        between = [after - save - before for before, after in zip(saved, saved[1:], strict=False)]
        assert pause < min(between) <= max(between) <= pause + 60


def test_an_earlier_attempt_has_told_how_long_a_state_takes(time):
    """Without it a job of two hours would not find out before its end, as its first state is its last."""
    clock = Clock(240, 1000.0, 120, took=1500)
    assert run(time, clock, 60, 1500)[-1] <= 120 * 60 and clock.took == 1500


def test_control_c_waits_for_the_state_and_a_second_one_does_not():
    with Clock(20) as clock:
        signal.raise_signal(signal.SIGINT)
        assert clock.ask("cpu", 1) == (True, "by SIGINT")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
