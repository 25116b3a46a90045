"""When a training saves its state and when it stops early: by time, by a signal, before the end of its job."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

import torch

from swiftkv.distill.recipe import PAUSE

# What schedulers send before they take a machine away, and Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
SPARE = 300.0  # seconds kept free before a job's end, besides what is known to be needed; at most a fifth of the job's


class Clock:
    """Asked after every optimizer step, by all ranks together; also a context in which the signals wait to be asked.

    It takes it that every call of `saved` was made right after the state that a call of `ask` had told to save.

    Attributes:
        took: seconds of the last state, gathered and written; 0 before there is one.
    """

    def __init__(self, every: float, started: float = 0.0, minutes: float | None = None, took: float = 0.0) -> None:
        """Start counting.

        Args:
            every: minutes between two states.
            started: `time.monotonic()` when the job began.
            minutes: how long it may run; None is no end.
            took: seconds of a state in an earlier attempt.
        """
        self.took = took
        self._every, self._saved = 60 * every, time.monotonic()
        self._known = self._saved  # since when the step under way runs
        self._end = None if minutes is None else started + 60 * minutes - min(SPARE, 0.2 * 60 * minutes)
        self._signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Clock:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == self._signal:
            raise KeyboardInterrupt  # asked twice, so now
        self._signal = number

    def ask(self, device: Any, ranks: int) -> tuple[bool, str | None]:
        """Whether a state is due, and why to stop now or None; the same answer on all ranks.

        Args:
            device: the device of the tensor that tells the other ranks.
            ranks: how many there are.
        """
        now = time.monotonic()
        # Going on may mean: a state now, one more step, and the last state.
        over = self._end is not None and now + (now - self._known) + 2 * self.took > self._end
        due = now - self._saved > max(self._every, PAUSE * self.took)
        flags = torch.tensor([due, over, self._signal or 0], device=device, dtype=torch.int32)
        if ranks > 1:  # their clocks differ a little, and a signal may reach one before another
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        due, over, number = flags.tolist()
        self._known = time.monotonic()
        if number:
            return True, f"by {signal.Signals(number).name}"
        return bool(due or over), "before the time of its job ends" if over else None

    def saved(self) -> None:
        """A state was saved."""
        now = time.monotonic()
        self.took, self._saved, self._known = now - self._known, now, now
