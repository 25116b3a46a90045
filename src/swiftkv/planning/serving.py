"""Seconds of one serving point: the engine's start, and what it is asked."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from swiftkv.cost import prefill_flops, request_flops
from swiftkv.data.workload import average_lengths
from swiftkv.measure.rates import TTFT_FACTOR, rising, search
from swiftkv.planning.machine import Machine
from swiftkv.planning.size import Size
from swiftkv.points import point as full_point
from swiftkv.spec import SwiftKVSpec

BUSY = 0.9  # load above which a server's queue makes requests wait (`swiftkv.measure.rates`)


def measure(
    config: dict[str, Any], name: str, size: Size, spec: SwiftKVSpec | None, fp8: bool, machine: Machine
) -> float:
    """Seconds of a serving point.

    Args:
        name: of the point.
        spec: the rewiring that is served.
        fp8: whether the weights are served in 8 bits.
    """
    point, weights = full_point(config, name), size.parameters * (1 if fp8 else 2)
    served = Served(size, spec, weights, point, machine)
    work = {
        "goodput": lambda: sum(
            Served(size, spec, weights, point | _sent(config, workload), machine).goodput()
            for workload in point["workloads"]
        ),
        "throughput": served.throughput,
        "latency": served.latency,
        "forward_time": served.forward,
        "decode": served.decoding,
        "kv_capacity": lambda: 0.0,
    }[point["measure"]]()
    start = machine["server"] if point["measure"] in ("latency", "goodput") else machine["engine"]
    return start + machine.load(weights / machine.together) + work


def _sent(config: dict[str, Any], workload: str) -> dict[str, Any]:
    """The requests of a workload, as if all were of its average length, and the rates they come at."""
    entry = config["workloads"][workload]
    prompt, output = map(round, average_lengths(entry))
    return {"input_tokens": prompt, "output_tokens": output, "request_rates": entry["request_rates"]}


class Served:
    """One model behind one engine."""

    def __init__(
        self, size: Size, spec: SwiftKVSpec | None, weights: int, point: dict[str, Any], machine: Machine
    ) -> None:
        self.size, self.spec, self.weights, self.point, self.machine = size, spec, weights, point, machine

    @cached_property
    def _request_flops(self) -> int:
        prompt, output = self.point["input_tokens"], self.point["output_tokens"]
        return sum(request_flops(self.size.arch, self.spec, prompt, output).values())

    def _compute(self, flops: float) -> float:
        return self.machine.compute(flops, "serving", self.machine.together)

    def _step(self) -> float:
        return self.machine.decode(1, self.weights, self.size.layers, self.machine.together)

    def _requests(self, count: float) -> float:
        """Seconds of so many requests, as many at once as the engine takes."""
        rounds = math.ceil(count / self.point["engine"]["max_num_seqs"])
        return self._compute(count * self._request_flops) + rounds * self.point["output_tokens"] * self._step()

    def throughput(self) -> float:
        """All requests at once, after one to warm up."""
        lengths = self.point["input_tokens"] + self.point["output_tokens"]
        return self._requests(max(1, round(self.point["total_tokens"] / lengths)) + self.point.get("warmups", 1))

    def latency(self) -> float:
        """Every rate that the search would measure on a server as fast as assumed."""
        spent: list[float] = []

        def answer(rate: float) -> dict[str, Any]:
            count, seconds, waiting = self._rate(rate)
            spent.append(seconds)
            return {
                "request_rate": rate, "completed": count, "failed": 0, "seconds": seconds,
                "e2e_ms": {"mean": 1000 * self._requests(1)}, "ttft_ms": {"median": TTFT_FACTOR + 1 if waiting else 1},
            }  # fmt: skip

        search(self.point["request_rates"], answer, self.point.get("refine_steps", 0))
        return sum(spent)

    def goodput(self) -> float:
        """Every rate of one workload up to the first at which requests wait, as if nothing came from the prefix cache."""
        spent: list[float] = []

        def answer(rate: float) -> dict[str, Any]:
            _, seconds, waiting = self._rate(rate)
            spent.append(seconds)
            return {"request_rate": rate, "goodput": 0.0 if waiting else rate}

        rising(self.point["request_rates"], answer)
        return sum(spent)

    def _rate(self, rate: float) -> tuple[int, float, bool]:
        """Requests of one rate, the seconds they take, and whether they wait for each other."""
        count = max(self.point.get("min_requests", 1), round(rate * self.point["seconds"]))
        busy = self._requests(count)
        return count, max(count / rate, busy) + self._requests(1), rate * busy / count > BUSY

    def forward(self) -> float:
        """Single steps over prompt tokens, each batch once more to warm up."""
        passes = [
            sum(prefill_flops(self.size.arch, self.spec, tokens).values()) for tokens in self.point["batch_tokens"]
        ]
        return (1 + self.point["repeats"]) * sum(self._compute(flops) + self._step() for flops in passes)

    def decoding(self) -> float:
        """Whole batches that decode, each once more to warm up."""
        return (1 + self.point["repeats"]) * sum(self._requests(batch) for batch in self.point["batch_sizes"])
