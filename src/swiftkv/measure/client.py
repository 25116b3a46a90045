"""`vllm bench serve` for several rates in one process; run as a program, that process.

Importing vLLM takes longer than a short measurement does, and it can go on while the server starts.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from swiftkv.measure.engine import failure
from swiftkv.measure.process import Job, offline_environment, running


class BenchClient:
    """A process that runs `vllm bench serve` as often as it is asked to."""

    def __init__(self, job: Job, address: str) -> None:
        self._job, self._address = job, address
        self._connection: Connection | None = None

    def run(self, arguments: list[str], check: Callable[[], None]) -> None:
        """One measurement.

        Args:
            arguments: those of `vllm bench serve`.
            check: called about once a second; what it raises ends the wait.

        Raises:
            EngineFailure: the client failed; its log says why.
        """
        try:
            self._connect(check).send(arguments)
            while not self._connection.poll(1.0):
                check()
            self._connection.recv()
        except (EOFError, ConnectionError):
            check()  # a server that died is the better reason
            raise failure("vllm bench serve", self._job.wait(), self._job.text(), self._job.log) from None

    def _connect(self, check: Callable[[], None]) -> Connection:
        while self._connection is None:
            try:
                self._connection = Client(self._address, "AF_UNIX")
            except OSError:  # it does not listen yet
                if self._job.returncode is not None:
                    raise EOFError from None
                check()
                time.sleep(0.1)
        return self._connection


@contextlib.contextmanager
def bench_client(log: Path) -> Iterator[BenchClient]:
    """A client for as long as the block runs; it leaves the processor to the server. Its output goes to `log`."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        command = [sys.executable, "-m", "swiftkv.measure.client", address]
        with running(command, log, offline_environment() | {"OMP_NUM_THREADS": "1"}) as job:
            yield BenchClient(job, address)


def main(address: str) -> None:
    """Answer with None after each finished measurement; an error ends this process, its traceback in the log."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as measure

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    with Listener(address, "AF_UNIX") as listener, listener.accept() as connection:
        while True:  # until this process is ended
            arguments = connection.recv()
            measure(parser.parse_args(arguments))
            connection.send(None)


if __name__ == "__main__":
    main(sys.argv[1])
