"""Interactive latency: a real server, Poisson arrivals at several rates, and the highest one it sustains (Fig. 4, B.1).

Why 5 in `CRITERION`: with Poisson arrivals and nearly constant service times (M/D/1) the mean wait is load / (2 (1 - load))
service times, so a time to first token of five times the idle one stands for a load of about 90 %. Above 100 % it grows with
the length of the measurement, past any factor.

Why 0.92: over 30 requests the wait at 110 % load is not yet longer than at 90 %, but the last request ends later than the
last arrival by more than its own time. `tests/unit/test_measure_latency.py` simulates how often both rules err.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pipeline.engines.worker import serving
from pipeline.measure.client import measure_rate
from pipeline.measure.point import Point
from pipeline.measure.turns import VARIANT, Run
from pipeline.prompts import chat_prompts, random_prompts

TTFT_FACTOR = 5.0
ACHIEVED = 0.92
CRITERION = (
    f"a rate is sustained if no request fails, the median time to first token is at most {TTFT_FACTOR:g} times that of "
    f"the lowest rate, and requests finish at {ACHIEVED:.0%} or more of the asked rate, the last one's own time "
    "(the mean end-to-end time at the lowest rate) not counted"
)


class Latency(Point):
    """All rates on one server."""

    alone = server = True
    headline_format = "sustains {highest_sustained_rate} requests/s"

    @property
    def recorded(self) -> dict[str, Any]:
        return super().recorded | {
            "dataset": self.settings.dataset or "random",
            "arrivals": "Poisson",
            "temperature": 0,
            "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions; a new server is warmed up",
        }

    def numbers(self, run: Run) -> dict[str, Any]:
        name = f"{run.subject.identity['name']}-{run.subject.variant}"
        command, environment = run.starts[VARIANT]
        start = partial(serving, command, name, run.engines.log, environment, self.start_timeout)
        server, (longest, output), folder = run.engines.get(VARIANT, start), self.lengths, run.subject.folder
        chats = chat_prompts(folder, run.chats, longest, self.seed) if self.settings.dataset else None
        vocabulary = run.subject.config["vocab_size"]

        def measure(rate: float) -> dict[str, Any]:
            requests = self.settings.requests(rate)
            if chats:  # as often as it takes
                prompts = list(itertools.islice(itertools.cycle(chats), requests))
            else:
                prompts = random_prompts(requests, longest, vocabulary, self.seed)
            seeds, runs = [self.seed + run for run in range(self.settings.repeats)], []
            for seed in seeds if server.warm else [self.seed, *seeds]:
                try:
                    # Chats end where the model ends them: forced on, a model repeats itself, and n-gram speculation would
                    # look better than it is.
                    runs.append(measure_rate(server.url, name, folder, prompts, output, rate, seed, forced=not chats))
                finally:
                    server.program.check()
            server.warm = True
            return of_runs(runs[-self.settings.repeats :])

        return search(self.settings.request_rates, measure, self.settings.refine_steps)

    def seen(self, result: dict[str, Any]) -> tuple[int, int]:
        """Mean prompt and output tokens of a request: those asked for, or for chats those of the lowest rate."""
        if not self.settings.dataset:
            return self.lengths
        lowest = result["rates"][0]
        prompt, output = (max(1, round(lowest[key] / lowest["completed"])) for key in ("input_tokens", "output_tokens"))
        return prompt, output


def of_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the runs of one rate, each as `measure_rate` returns it.

    Returns:
        The counts and seconds of all runs together, means of all else, and `runs`.
    """
    summed = ("requests", "completed", "failed", "input_tokens", "output_tokens", "seconds")

    def mean(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: mean([value[name] for value in values]) for name in values[0]}
        return statistics.fmean(values)

    result = {name: mean([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}
    return result | {name: sum(run[name] for run in runs) for name in summed} | {"runs": list(runs)}


def sustained(measured: dict[str, Any], lowest: dict[str, Any]) -> bool:
    """Return True if a rate's measurement meets `CRITERION`; `lowest` is that of the lowest rate."""
    if measured["failed"] or not measured["completed"]:
        return False
    # At the lowest rate: at its own rate it would hold the wait that a growing queue adds.
    busy = max(measured["seconds"] - len(measured["runs"]) * lowest["e2e_ms"]["mean"] / 1000, 1e-9)
    achieved = measured["completed"] / busy
    # No request waits less than none: the last arrival alone takes up requests / rate seconds.
    in_time = achieved >= ACHIEVED * measured["request_rate"]
    return in_time and measured["ttft_ms"]["median"] <= TTFT_FACTOR * lowest["ttft_ms"]["median"]


def search(rates: Sequence[float], measure: Callable[[float], dict[str, Any]], steps: int) -> dict[str, Any]:
    """Measure the given rates in ascending order, then narrow down where sustaining ends.

    Rates above two unsustained ones in a row are left out: a queue that only grows says nothing new and takes longest.

    Args:
        rates: requests a second, any order.
        measure: measures one rate; its result has completed, failed, seconds, ttft_ms, e2e_ms (mean, median, ...).
        steps: bisections between the highest sustained rate and the next unsustained one.

    Returns:
        rates (ascending, each with `sustained`), highest_sustained_rate (None if not even the lowest is),
        lowest_unsustained_rate (None if all are sustained), criterion.
    """
    done: list[dict[str, Any]] = []

    def add(rate: float) -> None:
        measured = measure(rate)
        done.append(measured | {"sustained": sustained(measured, done[0] if done else measured)})

    for rate in sorted(set(rates)):
        add(rate)
        if len(done) > 1 and not (done[-1]["sustained"] or done[-2]["sustained"]):
            break
    low, high = boundary(done)
    for _ in range(steps):
        if low is None or high is None:
            break
        add((low + high) / 2)
        low, high = boundary(done)
    return {
        "rates": sorted(done, key=lambda entry: entry["request_rate"]),
        "highest_sustained_rate": low,
        "lowest_unsustained_rate": high,
        "criterion": CRITERION,
    }


def boundary(measured: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
    """The highest rate up to which every measured rate is sustained, and the next one; None where there is none."""
    low = None
    for entry in sorted(measured, key=lambda entry: entry["request_rate"]):
        if not entry["sustained"]:
            return low, entry["request_rate"]
        low = entry["request_rate"]
    return low, None
