"""Requests a second within stated limits, by workload: a real server, lengths and arrivals of a trace. Not in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swiftkv.data.workload import RECORD, REQUESTS
from swiftkv.errors import UserError
from swiftkv.measure import latency
from swiftkv.measure.kind import OWN, Kind, Numbers, Run, repeats, turns
from swiftkv.measure.point import Point
from swiftkv.measure.rates import rising
from swiftkv.points import Goodput
from swiftkv.records import read_json
from swiftkv.section import plain

_SUMMED = ("requests", "completed", "failed", "good", "seconds", "input_tokens", "output_tokens")


def lengths(point: Point[Goodput]) -> tuple[int, int]:
    """Prompt and output tokens of the longest requests that are taken."""
    longest = [workload.longest for workload in point.workloads.values()]
    return max(entry.input_tokens for entry in longest), max(entry.output_tokens for entry in longest)


def settings(point: Point[Goodput]) -> dict[str, Any]:
    """What was asked for."""
    return {
        "seconds": point.settings.seconds,
        "min_requests": point.settings.min_requests,
        "repeats": point.settings.repeats,
        "workloads": plain(point.workloads),
        "arrivals": "as recorded or drawn, all gaps stretched alike",
        "outputs": "as long as recorded or drawn",
        "temperature": 0,
        "prompts": latency.PROMPTS,
        "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions; a new server is warmed up",
    }


def numbers(run: Run[Goodput], command: list[str]) -> Numbers:
    """All workloads on one server; each finished rate is kept in the work folder.

    In turns with the baseline, each rate is measured on both, each turn with requests and arrivals of its own.
    """
    workloads, point = run.point.workloads, run.point
    sources = {name: _source(run, name) for name in workloads}
    alike = latency.identity(run.subject, point) | latency.engine_of(command)
    if run.baseline is not None:
        alike["baseline"] = latency.identity(run.subject.baseline, point)
    alike |= {name: getattr(point.settings, name) for name in ("seconds", "min_requests", "repeats")}
    found: Numbers = {}
    with latency.pairs(run, command) as servers:
        for name, workload in workloads.items():
            limits = plain(workload.goodput)
            sent = {
                "kind": "workload",
                "file": str(_folder(run, name) / REQUESTS),
                "chunk_tokens": sources[name]["chunk_tokens"],
            }
            same = alike | {"source": sources[name], "goodput": limits, "seed": point.seed}

            def measure(rate: float, sides: Sequence[str], name=name, sent=sent, limits=limits, same=same) -> Numbers:
                def ask(side: str, turn: int) -> Numbers:
                    return servers[side].ask(run, rate, prompts=sent, goodput=limits, seed=point.seed + turn)

                file, often = run.work / f"{name}-{rate:g}.json", repeats(point, run.subject.variant)
                answers = latency.kept(file, same | {"sides": sides}, lambda: turns(sides, ask, often))
                return {side: together(answers[side]) for side in sides}

            sides = rising(workload.request_rates, measure, list(servers))
            found[name] = {"source": sources[name], **sides.pop(OWN), **sides}
    return {"workloads": found}


def together(answers: Sequence[Numbers]) -> Numbers:
    """What the turns of a rate say together: counts and seconds are sums, other numbers means; `goodputs` has each turn's."""
    found = {}
    for name, first in answers[0].items():
        each = [answer[name] for answer in answers]
        if name in _SUMMED:
            found[name] = sum(each)
        elif isinstance(first, dict):
            found[name] = {statistic: statistics.fmean(one[statistic] for one in each) for statistic in first}
        else:
            found[name] = statistics.fmean(each) if all(isinstance(one, float) for one in each) else first
    goodput = sum(answer["goodput"] * answer["seconds"] for answer in answers) / found["seconds"]
    return found | {"goodput": goodput, "goodputs": [answer["goodput"] for answer in answers]}


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
