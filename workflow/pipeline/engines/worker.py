"""Start programs for as long as a block runs: workers, which answer messages, and `vllm serve` processes.

Starting vLLM takes longer than a short measurement does, so one engine or server measures all points of a job.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.engines.log import EngineFailure
from pipeline.engines.process import Program, free_port, running


@dataclass(frozen=True)
class Worker:
    """A running program that answers over a pipe."""

    program: Program
    connection: Connection

    def ask(self, message: Any) -> Any:
        """Have something done, and wait for the answer.

        Raises:
            EngineFailure: the program ended (`OutOfMemory` if that was why); its log says more.
        """
        try:
            self.connection.send(message)
            while not self.connection.poll(1.0):  # what the program started may hold the other end of the pipe, too
                self.program.check()
            return self.connection.recv()
        except (EOFError, ConnectionError):
            raise self.program.failure() from None


@contextlib.contextmanager
def worker(command: Sequence[str], log: Path, environment: Mapping[str, str], what: str) -> Iterator[Worker]:
    """A worker for as long as the block runs; the descriptor of its pipe is added to the command as the last argument.

    Args:
        command: starts a program that calls `answer`.
        log: file for all it prints.
        what: how an error names it.
    """
    ours, theirs = multiprocessing.Pipe()
    descriptor = theirs.fileno()
    with ours, running([*command, str(descriptor)], log, environment, what, [descriptor]) as program:
        theirs.close()
        yield Worker(program, ours)


def module(name: str, *arguments: str) -> list[str]:
    """The command line of a module of this project."""
    return [sys.executable, "-m", name, *arguments]


def answer(descriptor: str, do: Callable[[Any], Any]) -> None:
    """Answer messages until this process is ended; an error ends it, its traceback in the log."""
    connection = Connection(int(descriptor))
    while True:
        connection.send(do(connection.recv()))


@dataclass
class Server:
    """A server that answers at `url`; `warm` once it has been measured for nothing: a new one is slow for a while."""

    program: Program
    url: str
    warm: bool = False


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    name: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> Iterator[Server]:
    """Start a server and wait until it answers.

    Args:
        command: the server's command line without host, port and model name, which are added here.
        name: the model id the server is to be known by.
        log: file for what it prints.
        timeout: seconds it may take until it answers.

    Raises:
        EngineFailure: it died or did not answer in time; one sentence.
    """
    port = free_port()
    command = [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", name]
    with running(command, log, environment, "the vLLM server") as program:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + timeout
        while not _healthy(url):
            program.check()
            if time.monotonic() > deadline:
                raise EngineFailure(
                    f"the vLLM server did not answer within {timeout:g} seconds (serving.engine.start_timeout); "
                    f"what it printed is in {log}"
                )
            time.sleep(0.2)
        program.check()  # what answers is not another's
        yield Server(program, url)


def _healthy(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
        return True
    return False
