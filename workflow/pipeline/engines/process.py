"""Run a program as a context manager; when the block ends, for whatever reason, end it and all of its child processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engines.log import EngineFailure, failure
from swiftkv.io import text_of

# Ends its process group, the program and what that has started, when nobody holds its standard input any more: the kernel
# closes that however this program ends, even by SIGKILL. A group of its own is reached by no signal to this program's.
GUARD = "trap '' TERM; read -r end; kill -TERM 0; sleep 10; kill -KILL 0"


@dataclass(frozen=True)
class Program:
    """A running program; `what` is its name in errors, `log` the file of what it and its processes print."""

    process: subprocess.Popen
    what: str
    log: Path

    @property
    def text(self) -> str:
        """Everything printed so far."""
        return text_of(self.log)

    def failure(self) -> EngineFailure:
        """Return why it ended, after waiting for it."""
        return failure(self.what, self.process.wait(), self.text, self.log)

    def check(self) -> None:
        """Raise an `EngineFailure` if it has ended."""
        if self.process.poll() is not None:
            raise self.failure()


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None, what: str, descriptors: Sequence[int] = ()
) -> Iterator[Program]:
    """Run `command` while the block runs.

    All of its processes end with the block, and through `GUARD` also with this program, whatever ends that.

    Args:
        command: program and arguments; no shell is involved.
        log: file for standard output and error, written anew.
        environment: the command's environment; None is this program's.
        what: how an error names it.
        descriptors: open files that it gets.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here, so that they are waited for
    with open(log, "wb") as output:
        guard = subprocess.Popen(["sh", "-c", GUARD], stdin=subprocess.PIPE, process_group=0)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=descriptors,
                process_group=guard.pid,
            )
            try:
                yield Program(process, what, log)
            finally:
                guard.stdin.close()  # type: ignore[union-attr]
                with contextlib.suppress(subprocess.TimeoutExpired):  # a guard that was killed itself ends nobody
                    process.wait(15)
        finally:
            os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-guard.pid, 0)


def free_port() -> int:
    """A TCP port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
