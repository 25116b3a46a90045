"""Programs that a measurement starts: workers that do jobs, a `vllm serve` process, and those that stay up for several points.

Starting vLLM, or only importing it, takes longer than a short measurement does. So an engine does several jobs, a client
measures several rates, and both start while other things do. All run under the guard.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

from pipeline.measure.engine import EngineFailure, failure
from pipeline.measure.process import Job, free_port, running

Started = TypeVar("Started")


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


@dataclass(frozen=True)
class Server:
    """A server that answers at `url` (no trailing slash) and knows the model as `name`."""

    url: str
    name: str
    job: Job

    def check(self) -> None:
        """Raise an `EngineFailure` if the server has died."""
        if self.job.returncode is not None:
            raise failure("the vLLM server", self.job.returncode, self.job.text(), self.job.log)


@contextlib.contextmanager
def serving(
    command: list[str], name: str, log: str | Path, environment: Mapping[str, str] | None = None, timeout: float = 600
) -> Iterator[Server]:
    """Start a server and wait until it says that it serves `name`.

    Args:
        command: the server's command line without host, port and model name, which are added here.
        name: the model id the server is to be known by.
        log: file for what it prints.
        environment: of the server.
        timeout: seconds it may take until it answers.

    Raises:
        EngineFailure: it died, did not answer in time, or serves something else; one sentence.
    """
    port = free_port()
    command = [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]
    with running(command, log, environment) as job:
        server = Server(f"http://127.0.0.1:{port}", name, job)
        deadline = time.monotonic() + timeout
        while (names := served_names(server.url)) is None:
            server.check()
            if time.monotonic() > deadline:
                raise EngineFailure(
                    f"the vLLM server did not answer within {timeout:g} seconds (serving.engine.start_timeout); "
                    f"what it printed is in {log}"
                )
            time.sleep(0.2)
        if name not in names:
            raise EngineFailure(f"port {port} serves {', '.join(names) or 'nothing'} where {name!r} was started")
        yield server


def served_names(url: str) -> list[str] | None:
    """The model ids a server lists; None while nothing sensible answers there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v1/models", timeout=5) as answer:
            return [entry["id"] for entry in json.load(answer)["data"]]
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError):
        return None


class Engines:
    """The engines or servers of a job, one of each side; all end with the block.

    Args:
        log: file for what that of the measured variant prints.

    Attributes:
        used: whether what `get` gave last had been given before.
    """

    def __init__(self, log: Path) -> None:
        self.log, self.used = log, False
        self._running: dict[str, tuple[Any, ExitStack, Any]] = {}  # side -> key, what ends it, and what was started

    def __enter__(self) -> Engines:
        self.log.unlink(missing_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs; the next measurement starts anew."""
        with ExitStack() as ending:
            while self._running:
                ending.push(self._running.popitem()[1][1])

    @contextlib.contextmanager
    def get(self, side: str, key: Any, start: Callable[[], AbstractContextManager[Started]]) -> Iterator[Started]:
        """Give what runs already if it was started for the same `key`, else end it and start another.

        It stays up after the block, unless that ends with an exception.
        """
        self.used = side in self._running and self._running[side][0] == key
        if not self.used:
            if side in self._running:
                self._running.pop(side)[1].close()
            stack = ExitStack()
            self._running[side] = key, stack, stack.enter_context(start())
        try:
            yield self._running[side][2]
        except BaseException:
            self.close()
            raise

    @property
    def text(self) -> str:
        """Everything that the measured variant's has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
