"""A closed loop: so many requests under way at all times, the next as soon as one ends. Not in the paper.

Prompts come while other requests decode, so the time between tokens shows what a prompt's steps cost those who decode.
Tokens a second of all users over those of one user is the curve that a server is chosen by.
"""

from __future__ import annotations

import math
from typing import Any

from swiftkv.measure import latency
from swiftkv.measure.kind import Kind, Numbers, Run, requested
from swiftkv.measure.point import Point
from swiftkv.points import Concurrency


def settings(point: Point[Concurrency]) -> dict[str, Any]:
    """What was asked for."""
    return {
        **{name: getattr(point.settings, name) for name in ("input_tokens", "output_tokens", "requests_each")},
        "concurrencies": sorted(point.settings.concurrencies),
        "arrivals": "closed loop",
        "temperature": 0,
        "prompts": latency.PROMPTS,
        "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions; a new server is warmed up",
    }


def numbers(run: Run[Concurrency], command: list[str]) -> Numbers:
    """All concurrencies on one server, ascending; each finished one is kept in the work folder."""
    point = run.point
    own = {name: value for name, value in settings(point).items() if name != "concurrencies"}
    same = latency.identity(run.subject, point) | latency.engine_of(command) | own | {"seed": point.seed}
    prompts = {"kind": "random", "vocabulary": run.subject.config["vocab_size"]}
    prompts |= dict(zip(("input_tokens", "output_tokens"), requested(point), strict=True))
    with latency.both(run, command) as pair:

        def measure(count: int) -> dict[str, Any]:
            job = {"prompts": prompts, "concurrency": count, "requests": count * point.settings.requests_each}
            return latency.kept(run.work / f"concurrency-{count}.json", same, lambda: pair.ask(run, math.inf, **job))

        return {"concurrencies": [measure(count) for count in sorted(point.settings.concurrencies)]}


def headline(result: Numbers) -> str:
    """The most tokens a second, and at how many requests."""
    best = max(result["concurrencies"], key=lambda each: each["tokens_per_second"])
    return f"{best['tokens_per_second']:,.0f} tokens/s with {best['concurrency']} requests at once"


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=latency.serve_command(requested),
    numbers=numbers,
    headline=headline,
    alone=True,
    server=True,
)
