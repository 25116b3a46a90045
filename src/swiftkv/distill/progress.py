"""Progress lines on stderr, and a training's CSV log and clock."""

from __future__ import annotations

import contextlib
import csv
import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from swiftkv import STARTED
from swiftkv.device import ranks
from swiftkv.distill.recipe import PAUSE

LOSSES = ("logits_loss", "hidden_loss", "early_exit_loss")  # parts of the loss, in the order of the steps
COLUMNS = (
    "step", "epoch", "tokens", "loss", *LOSSES, "learning_rate", "tokens_per_second", "seconds",
)  # fmt: skip
# Sent by schedulers before they take a machine away, and by Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
INTERVAL = 20.0  # seconds between two lines of progress
SPARE = 300.0  # reserve in seconds before a job's end; at most a fifth of the time left


def say(sentence: str) -> None:
    """Print a line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


class LossLog:
    """CSV log with one row per step, flushed at once; losses have all their digits."""

    def __init__(self, path: Path, steps: int) -> None:
        """Open `path` and keep only the rows of the first `steps` steps."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if steps and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if (row["step"] or "x").isdigit()]
            kept = [row for row in rows if int(row["step"]) <= steps]
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._writer.writerows({name: row[name] for name in COLUMNS} for row in kept)
        self._file.flush()

    def add(self, **row: float) -> None:
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ProgressLines:
    """Prints a line at the start, at the end and every `INTERVAL` seconds in between."""

    def __init__(self, what: str, total: int, unit: str = "step", done: int = 0) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.first, self.start, self.said = done, time.monotonic(), -INTERVAL

    def at(self, done: int, note: str = "") -> None:
        """Report that `done` of the units are done; the time left is estimated from the speed of this run."""
        elapsed = time.monotonic() - self.start
        if done < self.total and elapsed - self.said < INTERVAL:
            return
        self.said = elapsed
        left = (self.total - done) * elapsed / max(1, done - self.first)
        clock = datetime.timedelta(seconds=round(left if done < self.total else elapsed))
        time_said = f"{clock} left" if done < self.total else f"{clock} in all"
        parts = [f"{self.what}: {self.unit} {done}/{self.total}", *([note] if note else []), time_said]
        say(", ".join(parts))


def end_of_job(minutes: float | None) -> float | None:
    """Return when this job will be killed, in seconds of `time.monotonic()`; None means never.

    SLURM says when its own jobs end, for which a process of theirs starts too late to count.

    Args:
        minutes: time limit of a process outside SLURM; None means no limit.
    """
    if job := os.environ.get("SLURM_JOB_ID"):
        command = ["squeue", "--noheader", "--jobs", job, "--format", "%e"]
        seconds = os.environ | {"SLURM_TIME_FORMAT": "%s"}
        # There may be no squeue in an image, and a job without a limit has no number.
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            told = subprocess.run(command, env=seconds, capture_output=True, text=True, timeout=60)
            return time.monotonic() + int(told.stdout) - time.time()
    return None if minutes is None else STARTED + 60 * minutes


class Clock:
    """Decides after every optimizer step whether to save the state or to stop; a context manager that catches signals.

    Attributes:
        took: seconds to gather and write the last state; 0 before the first.
    """

    def __init__(self, every: float, end: float | None = None, took: float = 0.0) -> None:
        """Start the clock.

        Args:
            every: minutes between two states.
            end: `time.monotonic()` at the end of the job; None means no end.
            took: seconds of a state in an earlier attempt.
        """
        self.took = took
        self._every, self._saved = 60 * every, time.monotonic()
        self._known = self._saved  # start of the current step
        self._end = None if end is None else end - min(SPARE, 0.2 * (end - self._saved))
        self._signal: int | None = None

    def __enter__(self) -> Clock:
        self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == self._signal:
            raise KeyboardInterrupt  # the second Ctrl-C
        self._signal = number

    def ask(self, device: Any) -> tuple[bool, str | None]:
        """Return whether to save a state, and the reason to stop or None; equal on all ranks, which communicate on `device`."""
        now = time.monotonic()
        # To continue may take: a state now, one more step, and the last state.
        over = self._end is not None and now + (now - self._known) + 2 * self.took > self._end
        due = now - self._saved > max(self._every, PAUSE * self.took)
        flags = torch.tensor([due, over, self._signal or 0], device=device, dtype=torch.int32)
        if ranks() > 1:  # clocks differ a little, and a signal may reach one rank first
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        due, over, number = flags.tolist()
        self._known = time.monotonic()
        if number:
            return True, f"by {signal.Signals(number).name}"
        return bool(due or over), "before the time of its job ends" if over else None

    def saved(self) -> None:
        """Note that the state was saved; call it right after saving."""
        now = time.monotonic()
        self.took, self._saved, self._known = now - self._known, now, now
