"""Requests a second within stated limits, by workload: a real server, lengths and arrivals of a trace. Not in the paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from swiftkv.data.workload import RECORD, REQUESTS
from swiftkv.errors import UserError
from swiftkv.measure import latency
from swiftkv.measure.kind import Kind, Numbers, Run
from swiftkv.measure.point import Point
from swiftkv.measure.rates import rising
from swiftkv.points import Goodput
from swiftkv.records import read_json
from swiftkv.section import plain


def lengths(point: Point[Goodput]) -> tuple[int, int]:
    """Prompt and output tokens of the longest requests that are taken."""
    longest = [workload.longest for workload in point.workloads.values()]
    return max(entry.input_tokens for entry in longest), max(entry.output_tokens for entry in longest)


def settings(point: Point[Goodput]) -> dict[str, Any]:
    """What was asked for."""
    return {
        "seconds": point.settings.seconds,
        "min_requests": point.settings.min_requests,
        "workloads": plain(point.workloads),
        "arrivals": "as recorded or drawn, all gaps stretched alike",
        "outputs": "as long as recorded or drawn",
        "temperature": 0,
        "prompts": latency.PROMPTS,
        "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions, one rate to warm up",
    }


def numbers(run: Run[Goodput], command: list[str]) -> Numbers:
    """All workloads on one server; each finished rate is kept in the work folder."""
    workloads = run.point.workloads
    sources = {name: _source(run, name) for name in workloads}
    alike = latency.identity(run.subject, run.point) | latency.engine_of(command)
    with latency.both(run, command) as (server, client):
        found: Numbers = {}
        ask = latency.warmed(run.engines, partial(latency.ask, run, server, client))
        for name, workload in workloads.items():
            prompts = {
                "kind": "workload",
                "file": str(_folder(run, name) / REQUESTS),
                "chunk_tokens": sources[name]["chunk_tokens"],
            }
            limits, point = plain(workload.goodput), run.point
            same = alike | {"source": sources[name], "goodput": limits, "seed": point.seed}
            same |= {"seconds": point.settings.seconds, "min_requests": point.settings.min_requests}

            def measure(rate: float, name=name, prompts=prompts, limits=limits, same=same) -> Numbers:
                file = run.work / f"{name}-{rate:g}.json"
                return latency.kept(file, same, lambda: ask(rate, prompts=prompts, goodput=limits))

            found[name] = {"source": sources[name], **rising(workload.request_rates, measure)}
    return {"workloads": found}


def seen(point: Point, result: Numbers) -> tuple[int, int]:
    """Mean prompt and output tokens of a request, every workload counted alike."""
    sources = [workload["source"] for workload in result["workloads"].values()]
    means = (sum(source[f"mean_{what}_tokens"] for source in sources) / len(sources) for what in ("input", "output"))
    return tuple(max(1, round(mean)) for mean in means)


def headline(result: Numbers) -> str:
    """The main number of each workload, in words."""
    return ", ".join(f"{name} {found['goodput']:.3g} good requests/s" for name, found in result["workloads"].items())


def _folder(run: Run, name: str) -> Path:
    found = next((folder for folder in run.workloads if folder.name == name), None)
    if found is None:
        raise UserError(
            f"point {run.point.name!r} sends the workload {name!r}, but no folder of its requests was given"
        )
    return found


def _source(run: Run[Goodput], name: str) -> dict[str, Any]:
    """Where a workload's requests are from; refused if they are too few for the highest rate."""
    source = read_json(_folder(run, name) / RECORD)
    rate = max(run.point.workloads[name].request_rates)
    if (needed := latency.number_of_requests(run.point, rate)) > source["requests"]:
        raise UserError(
            f"workload {name!r} has {source['requests']} requests, but {rate:g} a second at point {run.point.name!r} take "
            f"{needed}; lower its request_rates or the point's seconds"
        )
    return source


KIND = Kind(
    lengths=lengths,
    settings=settings,
    command=latency.serve_command(lengths),
    numbers=numbers,
    headline=headline,
    seen=seen,
    alone=True,
    server=True,
)
