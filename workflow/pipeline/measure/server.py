"""A `vllm serve` process that answers, for as long as a block runs."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.measure.engine import EngineFailure, failure
from pipeline.measure.process import Job, free_port, running


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
