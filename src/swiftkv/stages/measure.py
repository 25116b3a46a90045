"""Measures one serving point with vLLM."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from swiftkv.cost import prefill_flops, request_flops
from swiftkv.data.workload import average_lengths
from swiftkv.measure.rates import TTFT_FACTOR, rising, search
from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage

BUSY = 0.9  # load above which a server's queue makes requests wait (`swiftkv.measure.rates`)


def seconds(work: Work) -> float:
    """The engine's start, and what it is asked."""
    point = work.config.point(work["point"])
    served = Served(work, point)
    measuring = {
        "throughput": served.throughput, "latency": served.latency, "forward_time": served.forward, "decode": served.decoding,
        "kv_capacity": lambda: 0.0, "goodput": lambda: sum(map(served.goodput, point["workloads"])),
    }[point["measure"]]()  # fmt: skip
    start = work.machine["server" if point["measure"] in ("latency", "goodput") else "engine"]
    return start + work.machine.load(served.weights / work.machine.together) + measuring


class Served:
    """One model behind one engine, and what a point asks of it."""

    def __init__(self, work: Work, point: dict[str, Any]) -> None:
        self.work, self.point, self.machine = work, point, work.machine
        fp8 = work.size.fp8 or work.model.quantization == "fp8"
        self.weights = work.size.parameters * (1 if fp8 else 2)  # bytes

    @cached_property
    def _request_flops(self) -> int:
        prompt, output = self.point["input_tokens"], self.point["output_tokens"]
        return sum(request_flops(self.work.size.arch, self.work.spec, prompt, output).values())

    def _compute(self, flops: float) -> float:
        return self.machine.compute(flops, "serving", self.machine.together)

    def _step(self) -> float:
        return self.machine.decode(1, self.weights, self.work.size.layers, self.machine.together)

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

    def goodput(self, workload: str) -> float:
        """Every rate of a workload up to the first at which requests wait, as if all had its average length."""
        entry, spent = self.work.config["workloads"][workload], list[float]()
        prompt, output = map(round, average_lengths(entry))
        sent = Served(self.work, self.point | {"input_tokens": prompt, "output_tokens": output})

        def answer(rate: float) -> dict[str, Any]:
            _, seconds, waiting = sent._rate(rate)
            spent.append(seconds)
            return {"request_rate": rate, "goodput": 0.0 if waiting else rate}

        rising(entry["request_rates"], answer)
        return sum(spent)

    def _rate(self, rate: float) -> tuple[int, float, bool]:
        """Requests of one rate, the seconds they take, and whether they wait for each other."""
        count = max(self.point.get("min_requests", 1), round(rate * self.point["seconds"]))
        busy = self._requests(count)
        return count, max(count / rate, busy) + self._requests(1), rate * busy / count > BUSY

    def forward(self) -> float:
        """Single steps over prompt tokens, each batch once more to warm up."""
        size, spec = self.work.size, self.work.spec
        passes = [sum(prefill_flops(size.arch, spec, tokens).values()) for tokens in self.point["batch_tokens"]]
        return (1 + self.point["repeats"]) * sum(self._compute(flops) + self._step() for flops in passes)

    def decoding(self) -> float:
        """Whole batches that decode, each once more to warm up."""
        return (1 + self.point["repeats"]) * sum(self._requests(batch) for batch in self.point["batch_sizes"])


STAGE = Stage(
    name="measure",
    output="serving/{point}/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.measure.run:measure_point",
    gpus="serve",
    seconds=seconds,
)
