"""The engines of one job: what was started last stays up for the next measurement that needs the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

Started = TypeVar("Started")


class Engines:
    """At most one engine or server at a time; all ends with the block.

    Args:
        log: file for what it prints.

    Attributes:
        used: whether what runs has been asked for before.
        warm: whether it has been measured once, for nothing.
    """

    def __init__(self, log: Path) -> None:
        self.log, self.used, self.warm = log, False, False
        self._key: Any = None
        self._running: tuple[Any, ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Engines:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs; the next measurement starts anew."""
        stack, self._stack, self._key, self._running = self._stack, ExitStack(), None, ()
        stack.close()

    @contextlib.contextmanager
    def get(self, key: Any, start: Callable[[], AbstractContextManager[Started]]) -> Iterator[Started]:
        """What `start` starts, or what runs already if it was started for the same `key`.

        It stays up after the block, unless that ends with an exception.
        """
        self.used = bool(self._running) and key == self._key
        if not self.used:
            self.close()
            self.warm = False
            self._running = (self._stack.enter_context(start()),)
            self._key = key
        try:
            yield self._running[0]
        except BaseException:
            self.close()
            raise

    @property
    def text(self) -> str:
        """Everything that it has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
