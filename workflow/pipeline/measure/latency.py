"""Interactive latency: a real server, Poisson arrivals at several rates, and the highest one it sustains (Fig. 4, B.1).

Why 5 in `CRITERION`: with Poisson arrivals and nearly constant service times (M/D/1) the mean wait is load / (2 (1 - load))
service times, so a time to first token of five times the idle one stands for a load of about 90 %. Above 100 % it grows with
the length of the measurement, past any factor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import points
from pipeline.measure.engine import EngineFailure
from pipeline.measure.point import Point
from pipeline.measure.process import offline_environment
from pipeline.measure.turns import OWN, Run
from pipeline.measure.worker import Server, Worker, module, serving, worker
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json

TTFT_FACTOR = 5.0
ACHIEVED = 0.9
UNSUSTAINED_IN_A_ROW = 2
CRITERION = (
    f"a rate is sustained if no request fails, the median time to first token is at most {TTFT_FACTOR:g} times that of "
    f"the lowest rate, and requests finish at {ACHIEVED:.0%} or more of the asked rate, the last one's own time "
    "(the mean end-to-end time at the lowest rate) not counted"
)
OF_THE_SEARCH = ("request_rates", "refine_steps")  # settings that change no rate's numbers


class Latency(Point[points.Latency]):
    """All rates on one server; each finished one is kept in the work folder, and a killed job goes on from there."""

    alone = server = True

    @property
    def recorded(self) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "request_rates", "seconds", "min_requests", "refine_steps")
        return self.chosen(*names) | {
            "dataset": self.settings.dataset or "random",
            "arrivals": "Poisson",
            "temperature": 0,
            "prompts": "token ids",
            "client": "vllm.benchmarks.serve.benchmark, endpoint /v1/completions; a new server is warmed up",
        }

    def numbers(self, run: Run) -> dict[str, Any]:
        if self.settings.dataset and run.heldout is None:
            raise UserError(f"point {self.name!r} sends chats, but no file with chats was given")
        same = {name: value for name, value in run.identity.items() if name not in OF_THE_SEARCH}
        with served(run) as pair:

            def measure(rate: float) -> dict[str, Any]:
                return kept(run.work / f"rate-{rate:g}.json", same, lambda: pair.ask(run, rate))

            return search(self.settings.request_rates, measure, self.settings.refine_steps)

    def number_of_requests(self, rate: float) -> int:
        """Requests of one rate: `seconds` of arrivals, and no fewer than `min_requests`."""
        return max(self.settings.min_requests, round(rate * self.settings.seconds))

    def prompts(self, run: Run) -> dict[str, Any]:
        """The requests' prompts, as the client takes them."""
        lengths = self.chosen("input_tokens", "output_tokens")
        if self.settings.dataset:
            return {"kind": "chats", "file": str(run.heldout), **lengths}
        return {"kind": "random", "vocabulary": run.subject.config["vocab_size"], **lengths}

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        return f"sustains {result['highest_sustained_rate']} requests/s"

    def seen(self, result: dict[str, Any]) -> tuple[int, int]:
        """Mean prompt and output tokens of a request: those asked for, or for chats those of the lowest rate."""
        if not self.settings.dataset:
            return self.lengths
        lowest = result["rates"][0]
        prompt, output = (max(1, round(lowest[key] / lowest["completed"])) for key in ("input_tokens", "output_tokens"))
        return prompt, output


@dataclass
class Pair:
    """A server and its client; `warm` once the server has been measured for nothing: a new one is slow for a while."""

    server: Server
    client: Worker
    warm: bool = False

    def ask(self, run: Run[points.Latency], rate: float) -> dict[str, Any]:
        """Measure one rate with the function `ask`, on a server that is warm."""
        if not self.warm:
            ask(run, self.server, self.client, rate)
        self.warm, result = True, ask(run, self.server, self.client, rate)
        median = result["ttft_ms"]["median"]
        print(f"{run.point.name}, {rate:g} requests a second: median TTFT {median:.0f} ms", flush=True)
        return result


@contextlib.contextmanager
def served(run: Run) -> Iterator[Pair]:
    """Start a server and its client side by side; they stay up for other points of the job."""
    name = f"{run.subject.identity['name']}-{run.subject.variant}"
    environment = offline_environment() | {"OMP_NUM_THREADS": "1"}  # it leaves the processor to the server

    @contextlib.contextmanager
    def start() -> Iterator[Pair]:
        log = run.log.with_suffix(".client.log")
        with (
            worker(module("pipeline.measure.client"), log, environment, "the benchmark client") as client,
            serving(run.command, name, run.log, run.environment, run.point.start_timeout) as server,
        ):
            yield Pair(server, client)

    with run.engines.get(OWN, (run.command, run.environment), start) as pair:
        yield pair


def ask(run: Run, server: Server, client: Worker, rate: float) -> dict[str, Any]:
    """Measure one rate, requests a second, on a running server; returns what `client.measure_rate` does.

    Raises:
        EngineFailure: the client failed, the server died meanwhile, or no request succeeded.
    """
    job = {
        "url": server.url,
        "name": server.name,
        "folder": str(run.subject.folder),
        "prompts": run.point.prompts(run),
        "requests": run.point.number_of_requests(rate),
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


def kept(file: Path, same: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a finished result from its file if it has the same identity, else measure it and keep it there."""
    found = read_json(file) if file.exists() else {}
    if found.get("identity") != same:
        found = {"identity": same, "result": measure()}
        write_json(file, found)
    return found["result"]


def sustained(measured: dict[str, Any], lowest: dict[str, Any]) -> bool:
    """Whether a rate's measurement meets `CRITERION`; `lowest` is that of the lowest rate."""
    if measured["failed"] or not measured["completed"]:
        return False
    busy = max(measured["seconds"] - lowest["e2e_ms"]["mean"] / 1000, 1e-9)
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

    def add(rate: float) -> bool:
        measured = measure(rate)
        done.append(measured | {"sustained": sustained(measured, done[0] if done else measured)})
        return done[-1]["sustained"]

    row = 0
    for rate in sorted(set(rates)):
        row = 0 if add(rate) else row + 1
        if row == UNSUSTAINED_IN_A_ROW:
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
