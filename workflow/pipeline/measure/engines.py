"""The engines of one job: what has been started stays up for the next measurement that needs the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

Started = TypeVar("Started")


class Engines:
    """The engines or servers that were asked for last; all end with the block.

    Args:
        log: file for what that of the measured variant prints.
        room: how many stay up at once.

    Attributes:
        used: whether what was asked for last has been asked for before.
    """

    def __init__(self, log: Path, room: int = 1) -> None:
        self.log, self.room, self.used = log, room, False
        self._running: list[tuple[Any, ExitStack, Any]] = []  # key, what ends it and what was started, the latest last

    def __enter__(self) -> Engines:
        self.log.unlink(missing_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs; the next measurement starts anew."""
        with ExitStack() as ending:
            for _, stack, _ in self._running:
                ending.push(stack)
            self._running = []

    @contextlib.contextmanager
    def get(self, key: Any, start: Callable[[], AbstractContextManager[Started]]) -> Iterator[Started]:
        """What `start` starts, or what runs already if it was started for the same `key`.

        It stays up after the block, unless that ends with an exception.
        """
        found = next((running for running in self._running if running[0] == key), None)
        self.used = found is not None
        if found is None:
            while len(self._running) >= self.room:
                _, oldest, _ = self._running.pop(0)
                oldest.close()
            stack = ExitStack()
            found = (key, stack, stack.enter_context(start()))
        else:
            self._running.remove(found)
        self._running.append(found)
        try:
            yield found[2]
        except BaseException:
            self.close()
            raise

    @property
    def text(self) -> str:
        """Everything that the measured variant's has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
