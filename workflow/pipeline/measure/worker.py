"""A program that does jobs for this one: it starts under the guard, is asked over a socket, and answers.

Starting vLLM, or only importing it, takes longer than a short measurement does. So an engine does several jobs, a client
measures several rates, and both start while other things do.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from pipeline.measure.engine import failure
from pipeline.measure.process import Job, running


class Worker:
    """A running worker; its `job` says whether it still runs and what it printed."""

    def __init__(self, job: Job, address: str, what: str) -> None:
        self.job, self._address, self._what = job, address, what
        self._connection: Connection | None = None

    def ask(self, message: Any, check: Callable[[], None] = lambda: None) -> Any:
        """Have a job done, and wait for its answer.

        Args:
            message: the job, as the program understands it.
            check: called about once a second; what it raises ends the wait.

        Raises:
            EngineFailure: the program ended (`OutOfMemory` if that was why); its log says more.
        """
        try:
            self._connect(check).send(message)
            while not self._connection.poll(1.0):
                check()
            return self._connection.recv()
        except (EOFError, ConnectionError):
            check()  # what it was to measure died: the better reason
            raise failure(self._what, self.job.wait(), self.job.text(), self.job.log) from None

    def _connect(self, check: Callable[[], None]) -> Connection:
        while self._connection is None:
            try:
                self._connection = Client(self._address, "AF_UNIX")
            except OSError:  # it does not listen yet
                if self.job.returncode is not None:
                    raise EOFError from None
                check()
                time.sleep(0.1)
        return self._connection


@contextlib.contextmanager
def worker(command: Sequence[str], log: Path, environment: Mapping[str, str], what: str) -> Iterator[Worker]:
    """A worker for as long as the block runs.

    Args:
        command: starts the program; the address of its socket is added as the last argument.
        log: file for all it prints.
        what: how an error names it.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        with running([*command, address], log, environment) as job:
            yield Worker(job, address, what)


def module(name: str, *arguments: str) -> list[str]:
    """The command line of a module of this project."""
    return [sys.executable, "-m", name, *arguments]


def answer(address: str, do: Callable[[Any], Any]) -> None:
    """Do jobs until this process is ended or nobody asks any more; an error ends it, its traceback in the log."""
    with Listener(address, "AF_UNIX") as listener, listener.accept() as connection:
        while True:
            try:
                message = connection.recv()
            except EOFError:
                return
            connection.send(do(message))
