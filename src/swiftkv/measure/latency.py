"""Interactive latency: a real server, Poisson arrivals at several rates (Fig. 4, B.1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from swiftkv.errors import UserError
from swiftkv.measure.engine import EngineFailure
from swiftkv.measure.kind import Kind, Numbers, Run, requested
from swiftkv.measure.point import Point, vllm
from swiftkv.measure.process import offline_environment
from swiftkv.measure.rates import search
from swiftkv.measure.server import Server, serving
from swiftkv.measure.worker import Worker, module, worker
from swiftkv.records import read_json, write_json

PROMPTS = "token ids"


def settings(point: Point) -> dict[str, Any]:
    """What was asked for."""
    return {
        **{name: point[name] for name in ("input_tokens", "output_tokens", "request_rates", "seconds")},
        "min_requests": point.get("min_requests", 1),
        "refine_steps": point.get("refine_steps", 0),
        "dataset": point.get("dataset") or "random",
        "arrivals": "Poisson",
        "temperature": 0,
        "prompts": PROMPTS,
        "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions, one request to warm up",
    }


def serve_command(run: Run) -> list[str]:
    """`vllm serve`, without host, port and name."""
    return vllm("serve", str(run.subject.folder), *run.arguments(*requested(run.point)))


def number_of_requests(point: Point, rate: float) -> int:
    """Requests of one rate: `seconds` of arrivals, and no fewer than `min_requests`."""
    return max(point.get("min_requests", 1), round(rate * point["seconds"]))


def numbers(run: Run, command: list[str]) -> Numbers:
    """All rates on one server; each finished one is kept in the work folder, and a killed job goes on from there."""
    point = run.point
    if point.get("dataset") and run.heldout is None:
        raise UserError(f"point {point.name!r} sends chats, but no file with chats was given")
    name, same = f"{run.subject.identity['name']}-{run.subject.variant}", _identity(run, command)
    # It leaves the processor to the server.
    environment = offline_environment() | {"OMP_NUM_THREADS": "1"}
    with (
        worker(
            module("swiftkv.measure.client"), run.work / "client.log", environment, "the benchmark client"
        ) as client,
        serving(command, name, run.log, run.environment, point.engine["start_timeout"]) as server,
    ):

        def measure(rate: float) -> dict[str, Any]:
            return _kept(run, rate, same, lambda: measure_rate(run, server, client, rate))

        return search(point["request_rates"], measure, point.get("refine_steps", 0))


def measure_rate(run: Run, server: Server, client: Worker, rate: float) -> dict[str, Any]:
    """Measure one rate on a running server; returns what `client.measure_rate` does.

    Raises:
        EngineFailure: the client failed, the server died meanwhile, or no request succeeded.
    """
    job = {
        "url": server.url,
        "name": server.name,
        "folder": str(run.subject.folder),
        "vocabulary": run.subject.config["vocab_size"],
        "heldout": None if run.heldout is None else str(run.heldout),
        "input_tokens": run.point["input_tokens"],
        "output_tokens": run.point["output_tokens"],
        "requests": number_of_requests(run.point, rate),
        "rate": rate,
        "seed": run.point["seed"],
    }
    result = client.ask(job, server.check)
    server.check()
    error = (result.pop("error") or "").strip().splitlines()[-1:]
    if not result["completed"]:
        why = f": {error[0]}" if error else ""
        raise EngineFailure(f"not one request succeeded at {rate:g} requests a second{why} (see {client.job.log})")
    return result


def seen(point: Point, result: Numbers) -> tuple[int, int]:
    """Mean prompt and output tokens of a request: those asked for, or for chats those of the lowest rate."""
    if not point.get("dataset"):
        return requested(point)
    lowest = result["rates"][0]
    prompt, output = (max(1, round(lowest[key] / lowest["completed"])) for key in ("input_tokens", "output_tokens"))
    return prompt, output


def _kept(run: Run, rate: float, same: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A finished rate's result from the work folder if it was measured under the same settings, else a new one."""
    file = run.work / f"rate-{rate:g}.json"
    if file.exists():
        kept = read_json(file)
        if kept["settings"] == same:
            return kept["result"]
    result = measure()
    write_json(file, {"settings": same, "result": result})
    print(f"{rate:g} requests/s: median TTFT {result['ttft_ms']['median']:.0f} ms", flush=True)
    return result


def _identity(run: Run, command: list[str]) -> dict[str, Any]:
    """What two measurements of one rate must have in common to be the same, as it comes back from a JSON file."""
    config = run.subject.folder / "config.json"
    content = {
        "command": command,
        "point": {
            key: value for key, value in run.point.values.items() if key not in ("request_rates", "refine_steps")
        },
        "plugin": run.subject.plugin,
        "prompts": PROMPTS,
        "threads": run.point.threads,
        "model_time": config.stat().st_mtime,
    }
    return json.loads(json.dumps(content))


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=serve_command,
    numbers=numbers,
    headline=lambda result: f"sustains {result['highest_sustained_rate']} requests/s",
    seen=seen,
)
