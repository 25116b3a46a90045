"""A real `vllm serve` process, what it says about itself, and a client for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
from tests.serve.conftest import NGRAM, engine_environment

from pipeline.measure.process import free_port

START_SECONDS, STOP_SECONDS = 600, 60
LENGTH = 512
NAME = "tiny"
CACHED_AND_SPECULATING = ("--enable-prefix-caching", "--speculative-config", json.dumps(NGRAM))


@dataclass(frozen=True)
class Server:
    """A server at `url` (no trailing slash); `log` is the file of what its processes print."""

    url: str
    port: int
    process: subprocess.Popen
    log: Path

    def healthy(self) -> bool:
        """Whether it says so itself."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def family(self) -> list[psutil.Process]:
        """All its running processes, whoever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def metric(self, name: str) -> float:
        """A number of /metrics, summed over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert values, f"/metrics has no {name}"
        return sum(values)

    def assert_idle(self) -> None:
        """No request is left, and what the prefix cache keeps of them is free to be taken."""
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        deadline = time.monotonic() + 10  # an answer may come before the numbers of its last step
        while (values := {name: self.metric(name) for name in gauges}) != dict.fromkeys(gauges, 0):
            assert time.monotonic() < deadline, values
            time.sleep(0.5)

    def stop(self) -> None:
        """Ask it to end, and wait until all its processes have."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.5)


@contextlib.contextmanager
def serving(model: Path, place: Path, *options: str) -> Iterator[Server]:
    """Serve a checkpoint as a user would, by its path, in float32 and eager; its log and caches are in `place`."""
    port = free_port()
    command = [Path(sys.executable).with_name("vllm"), "serve", model, "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(LENGTH), "--max-num-seqs", "32", "--max-num-batched-tokens", "256"]
    command += ["--kv-cache-memory-bytes", str(2**25), "--block-size", "32", *options]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=engine_environment(place), start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", port, process, place / "log")
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.healthy():
            assert process.poll() is None and time.monotonic() < deadline, server.log.read_text()[-4000:]
            time.sleep(0.5)
        yield server
    finally:
        for left in server.family():
            left.kill()
        process.wait()


def client(server: Server) -> openai.AsyncOpenAI:
    """A client that tries nothing twice; a context manager."""
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=600)


async def ask(client: openai.AsyncOpenAI, prompt: list[int], max_tokens: int = 12, **changes):
    """Token ids of one greedy answer, or the client's error."""
    body = {"return_token_ids": True, "ignore_eos": True} | changes.pop("extra", {})
    try:
        answer = await client.completions.create(
            model=NAME, prompt=prompt, max_tokens=max_tokens, extra_body=body, **{"temperature": 0} | changes
        )
    except openai.APIError as error:
        return error
    return answer.choices[0].token_ids
