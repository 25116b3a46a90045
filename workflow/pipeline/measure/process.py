"""Start a program with all it starts itself, and leave none of it behind however the block is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


class Job:
    """A running command; `log` is the file that holds all it and its processes print."""

    def __init__(self, guard: subprocess.Popen, log: Path) -> None:
        self.guard, self.log = guard, log

    @property
    def returncode(self) -> int | None:
        """Exit status of the command, 128 + signal if one ended it; None while it runs."""
        return self.guard.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit status, or None if the command still runs after `timeout` seconds."""
        try:
            return self.guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def text(self) -> str:
        """Everything printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """End the command and all its processes, and wait until they are gone."""
        if self.guard.stdin and not self.guard.stdin.closed:
            self.guard.stdin.close()
        self.guard.wait()


@contextlib.contextmanager
def running(command: list[str], log: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Job]:
    """Run `command` while the block runs.

    All of its processes end with the block: after an exception, after SIGTERM and SIGINT, and also, through
    `guard.py`, when this program is killed with SIGKILL.

    Args:
        command: program and arguments; no shell is involved.
        log: file for standard output and error, written anew.
        environment: the command's environment; None is this program's.
    """
    log = Path(log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with terminates_cleanly(), open(log, "wb") as output:
        guard = subprocess.Popen(
            [sys.executable, "-S", "-E", str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
        job = Job(guard, log)
        try:
            yield job
        finally:
            job.stop()


@contextlib.contextmanager
def terminates_cleanly() -> Iterator[None]:
    """Let SIGTERM leave the block as an exit does, so that what it started is stopped first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A TCP port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name: str) -> str:
    """An executable of the Python environment that runs this, also where it is not activated."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def offline_environment() -> dict[str, str]:
    """This program's environment for a vLLM that reports nothing, downloads nothing and logs what `engine.py` reads."""
    local = ",".join(filter(None, [os.environ.get("no_proxy", ""), "127.0.0.1", "localhost"]))
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_COLOR": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "no_proxy": local,
        "NO_PROXY": local,
    }
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would win over the memory this point states
    return environment
