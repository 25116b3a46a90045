"""When a training saves its state and when it stops early: by time, by a signal, before the end of its job."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

import torch

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what schedulers send before they take a machine away


def early_enough(started: float, minutes: float) -> float:
    """When a job that may run for so many minutes since `started` has to save its state, in `started`'s seconds."""
    return started + max(60 * minutes - 300, 0.8 * 60 * minutes)


class Clock:
    """Asked after every optimizer step, by all ranks together; also a context in which the signals wait to be asked.

    Args:
        every: minutes between two states.
        end: `time.monotonic()` after which it stops; None is no end.
    """

    def __init__(self, every: float, end: float | None = None) -> None:
        self._every, self._saved = 60 * every, time.monotonic()
        self._end = end
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
        self._signal = number

    def ask(self, device: Any, ranks: int) -> tuple[bool, str | None]:
        """Whether a state is due, and why to stop now or None; the same answer on all ranks.

        Args:
            device: of the tensor that tells the other ranks.
            ranks: how many there are.
        """
        now = time.monotonic()
        over = self._end is not None and now > self._end
        flags = torch.tensor(
            [now - self._saved > self._every, over, self._signal or 0], device=device, dtype=torch.int32
        )
        if ranks > 1:  # their clocks differ a little, and a signal may reach one before another
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        due, over, number = flags.tolist()
        if number:
            return True, f"by {signal.Signals(number).name}"
        return bool(due or over), "before the time of its job ends" if over else None

    def saved(self) -> None:
        """A state was saved."""
        self._saved = time.monotonic()
