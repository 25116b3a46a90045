"""Interactive latency: a real server, Poisson arrivals at several rates (Fig. 4, B.1)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.points import Latency
from pipeline.measure.engine import VLLM, EngineFailure
from pipeline.measure.kind import Kind, Numbers, Run, requested
from pipeline.measure.memory import devices
from pipeline.measure.point import Point, Subject, vllm
from pipeline.measure.process import offline_environment
from pipeline.measure.rates import search
from pipeline.measure.server import Server, serving
from pipeline.measure.worker import Worker, module, worker
from pipeline.records import installed_version, processor
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json

PROMPTS = "token ids"


def settings(point: Point[Latency]) -> dict[str, Any]:
    """What was asked for."""
    names = ("input_tokens", "output_tokens", "request_rates", "seconds", "min_requests", "refine_steps")
    return {
        **{name: getattr(point.settings, name) for name in names},
        "dataset": point.settings.dataset or "random",
        "arrivals": "Poisson",
        "temperature": 0,
        "prompts": PROMPTS,
        "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions; a new server is warmed up",
    }


def sent(point: Point[Latency]) -> dict[str, Any]:
    """What the requests of each rate are, whatever the rates."""
    own = {name: value for name, value in settings(point).items() if name not in ("request_rates", "refine_steps")}
    return own | {"seed": point.seed}


def serve_command(lengths: Callable[[Point], tuple[int, int]]) -> Callable[[Run], list[str]]:
    """The command of the kinds that measure a server: `vllm serve`, without host, port and name."""
    return lambda run: vllm("serve", str(run.subject.folder), *run.arguments(*lengths(run.point)))


def number_of_requests(point: Point[Latency], rate: float) -> int:
    """Requests of one rate: `seconds` of arrivals, and no fewer than `min_requests`."""
    return max(point.settings.min_requests, round(rate * point.settings.seconds))


def numbers(run: Run[Latency], command: list[str]) -> Numbers:
    """All rates on one server; each finished one is kept in the work folder, and a killed job goes on from there."""
    point = run.point
    if point.settings.dataset and run.heldout is None:
        raise UserError(f"point {point.name!r} sends chats, but no file with chats was given")
    same = identity(run.subject, point) | engine_of(command) | sent(point)
    with served(run, command) as pair:

        def measure(rate: float) -> dict[str, Any]:
            return kept(run.work / f"rate-{rate:g}.json", same, lambda: pair.ask(run, rate))

        return search(point.settings.request_rates, measure, point.settings.refine_steps)


@dataclass
class Pair:
    """A server and its client; `warm` once the server has been measured for nothing: a new one is slow for a while."""

    server: Server
    client: Worker
    warm: bool = False

    def ask(self, run: Run[Latency], rate: float) -> dict[str, Any]:
        """What the function `ask` measures, on a server that is warm."""
        if not self.warm:
            ask(run, self.server, self.client, rate)
            self.warm = True
        result = ask(run, self.server, self.client, rate)
        print(
            f"{self.server.name}, {rate:g} requests a second: median TTFT {result['ttft_ms']['median']:.0f} ms",
            flush=True,
        )
        return result


@contextlib.contextmanager
def served(run: Run, command: list[str]) -> Iterator[Pair]:
    """Start a server and its client side by side; they stay up for other points of the job."""
    name = f"{run.subject.identity['name']}-{run.subject.variant}"
    environment = offline_environment() | {"OMP_NUM_THREADS": "1"}  # it leaves the processor to the server

    @contextlib.contextmanager
    def start() -> Iterator[Pair]:
        place = run.log.with_name("client.log")
        with (
            worker(module("pipeline.measure.client"), place, environment, "the benchmark client") as client,
            serving(command, name, run.log, run.environment, run.point.start_timeout) as server,
        ):
            yield Pair(server, client)

    with run.engines.get((command, name, environment, run.environment), start) as pair:
        yield pair


def prompts(run: Run[Latency]) -> dict[str, Any]:
    """What a latency point sends, as the client is told."""
    lengths = dict(zip(("input_tokens", "output_tokens"), requested(run.point), strict=True))
    if run.point.settings.dataset:
        return {"kind": "chats", "file": str(run.heldout), **lengths}
    return {"kind": "random", "vocabulary": run.subject.config["vocab_size"], **lengths}


def ask(run: Run[Latency], server: Server, client: Worker, rate: float) -> dict[str, Any]:
    """Measure one rate, requests a second, on a running server; returns what `client.measure_rate` does.

    Raises:
        EngineFailure: the client failed, the server died meanwhile, or no request succeeded.
    """
    job = {
        "url": server.url,
        "name": server.name,
        "folder": str(run.subject.folder),
        "prompts": prompts(run),
        "requests": number_of_requests(run.point, rate),
        "rate": rate,
        "seed": run.point.seed,
    }
    result = client.ask(job, server.check)
    server.check()
    error = (result.pop("error") or "").strip().splitlines()[-1:]
    if not result["completed"]:
        why = f": {error[0]}" if error else ""
        raise EngineFailure(f"not one request succeeded at {rate:g} requests a second{why} (see {client.job.log})")
    return result


def seen(point: Point[Latency], result: Numbers) -> tuple[int, int]:
    """Mean prompt and output tokens of a request: those asked for, or for chats those of the lowest rate."""
    if not point.settings.dataset:
        return requested(point)
    lowest = result["rates"][0]
    prompt, output = (max(1, round(lowest[key] / lowest["completed"])) for key in ("input_tokens", "output_tokens"))
    return prompt, output


def kept(file: Path, same: dict[str, Any], measure: Callable[[], Any]) -> Any:
    """A finished rate's result from its file if it was measured under the same settings, else a new one, kept there."""
    if file.exists():
        found = read_json(file)
        if found["settings"] == same:
            return found["result"]
    result = measure()
    write_json(file, {"settings": same, "result": result})
    return result


def engine_of(command: list[str]) -> dict[str, Any]:
    """A command as far as it changes numbers: not the longest sequence, which depends on the other points of an engine."""
    length = command.index("--max-model-len")
    return {"command": command[:length] + command[length + 2 :]}


def identity(subject: Subject, point: Point) -> dict[str, Any]:
    """What two measurements must have in common to be the same, beside what is asked: what is served, with and on what.

    Size and time of every file stand for the model, as reading its weights takes as long as serving it.
    """
    driver = Path("/proc/driver/nvidia/version")
    return {
        "plugin": subject.plugin,
        "threads": point.threads,
        "dtype": point.dtype,
        "model": state_of(subject.folder),
        "vllm": installed_version(*VLLM),
        "gpus": [device.name for device in devices()[: point.gpus]] if point.gpus else [],
        "driver": driver.read_text() if point.gpus and driver.exists() else None,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
    }


def state_of(place: Path) -> dict[str, list[int]]:
    """Size and time of a file, or of every file in a folder, by name."""
    files = sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=serve_command(requested),
    numbers=numbers,
    headline=lambda result: f"sustains {result['highest_sustained_rate']} requests/s",
    seen=seen,
    alone=True,
    server=True,
)
