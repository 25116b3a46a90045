"""Runs one command and ends all of its processes when it finishes, when told to, or when whoever asked for it is gone.

`python guard.py COMMAND ...`: the standard input is a pipe that nobody writes to. Its end of file means "stop": the
kernel closes it also when the asking program is killed with SIGKILL, which no handler of that program could notice.
The guard lives in a session of its own, so a signal to the asking program's group does not reach it.

vLLM's engine and worker processes stay in their server's process group, so ending the group ends them, also those that
lost their parent. Only the standard library is used: the guard must start fast and stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

GRACE = 15.0  # seconds between the polite and the final signal
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run `command`; the exit status is its own, or 128 + signal."""
    asked = []  # a signal to the guard itself stops the command too
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked.append(True))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of the command come here, so that they are waited for
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, 9)
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    status: dict[int, int] = {}
    while child.pid not in status and not asked:
        with contextlib.suppress(InterruptedError):
            ready, _, _ = select.select([0], [], [], 0.1)
            if ready and not os.read(0, 4096):
                asked.append(True)
        _reap(status)
    _end(child.pid, status)
    code = os.waitstatus_to_exitcode(status.get(child.pid, 0))
    return code if code >= 0 else 128 - code


def _end(group: int, status: dict[int, int]) -> None:
    """Leave no process of the group: its leader is asked first, then all are killed."""
    if group not in status:
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    killed = False
    while _alive(group, status):
        if not killed and (group in status or time.monotonic() > deadline):
            # Without its leader nothing tells the rest to stop.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            killed = True
        time.sleep(0.05)


def _alive(group: int, status: dict[int, int]) -> bool:
    _reap(status)
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap(status: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status[ended[0]] = ended[1]


def _prctl(option: int, value: int) -> None:
    """A Linux service that makes the guard's work surer; without it the pipe and the process group still do it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # the child was reaped here, not by subprocess, which would complain
