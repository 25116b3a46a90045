"""Measures one serving point with vLLM."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from swiftkv.cost import prefill_flops, request_flops
from swiftkv.data.workload import average_lengths
from swiftkv.measure.kind import BASELINE
from swiftkv.measure.point import Point
from swiftkv.measure.rates import TTFT_FACTOR, rising, search
from swiftkv.measure.run import KINDS, engine_key
from swiftkv.pricing.work import Work
from swiftkv.section import plain
from swiftkv.stages.stage import Stage

BUSY = 0.9  # load above which a server's queue makes requests wait (`swiftkv.measure.rates`)


def seconds(work: Work) -> float:
    """The engine's start, and what it is asked."""
    served = _served(work)
    point = served.point
    measuring = {
        "throughput": served.throughput,
        "latency": served.latency,
        "forward_time": served.forward,
        "decode": served.decoding,
        "kv_capacity": lambda: 0.0,
        "goodput": served.goodput,
    }[point.measure]()
    return start(work)[1] + measuring * served.sides


def start(work: Work) -> tuple[str, float]:
    """The engine that a point needs, and the seconds of its start; points that need the same one may share it."""
    served, name = _served(work), work["point"]
    point = Point.read(name, work.config.point(name), gpus=work.job.gpus, threads=work.job.threads)
    of = "/".join(work.job.wildcards.get(part, "") for part in ("model", "variant", "kv_cache"))
    alone = work.machine["server" if KINDS[served.point.measure].server else "engine"]
    seconds = alone + work.machine.load(served.weights / work.machine.together)
    return f"{of} {engine_key(point)}", seconds * served.sides


def _served(work: Work) -> Served:
    serving = work.config.serving
    point = serving.points[work["point"]]
    output = getattr(point, "output_tokens", None) or serving.output_tokens
    return Served(work, point, getattr(point, "input_tokens", 0), output)


class Served:
    """One model behind one engine, and what a point asks of it: requests of so many prompt and output tokens."""

    def __init__(self, work: Work, point: Any, prompt: int, output: int) -> None:
        self.work, self.point, self.machine = work, point, work.machine
        self.prompt, self.output = prompt, output
        fp8 = work.size.fp8 or work.model.quantization == "fp8"
        self.weights = work.size.parameters * (1 if fp8 else 2)  # bytes

    @property
    def sides(self) -> int:
        """How many engines are measured: with the baseline's, where it takes turns with a variant."""
        return 2 if self.work.config.in_turns(self.work["point"]) and self.work["variant"] != BASELINE else 1

    @cached_property
    def _request_flops(self) -> int:
        return sum(request_flops(self.work.size.arch, self.work.spec, self.prompt, self.output).values())

    def _compute(self, flops: float) -> float:
        return self.machine.compute(flops, "serving", self.machine.together)

    def _step(self) -> float:
        return self.machine.decode(1, self.weights, self.work.size.layers, self.machine.together)

    def _requests(self, count: float) -> float:
        """Seconds of so many requests, as many at once as the engine takes."""
        rounds = math.ceil(count / self.work.config.serving.engine.max_num_seqs)
        return self._compute(count * self._request_flops) + rounds * self.output * self._step()

    def throughput(self) -> float:
        """All requests at once, each time after one to warm up."""
        count = max(1, round(self.point.total_tokens / (self.prompt + self.output)))
        return self.point.repeats * self._requests(count + self.point.warmups)

    def latency(self) -> float:
        """Every rate that the search would measure on a server as fast as assumed."""
        spent: list[float] = []

        def answer(rate: float) -> dict[str, Any]:
            count, seconds, waiting = self._rate(rate)
            spent.append(seconds)
            return {
                "request_rate": rate,
                "completed": count,
                "failed": 0,
                "seconds": seconds,
                "e2e_ms": {"mean": 1000 * self._requests(1)},
                "ttft_ms": {"median": TTFT_FACTOR + 1 if waiting else 1},
            }

        search(self.point.request_rates, answer, self.point.refine_steps)
        return spent[0] + sum(spent)  # the first twice, to warm up

    def goodput(self) -> float:
        """Every rate of the workloads up to the first at which requests wait, as if all had its average length."""
        spent: list[float] = []
        for name in self.point.workloads:
            workload = self.work.config.workloads[name]
            sent = Served(self.work, self.point, *map(round, average_lengths(plain(workload))))

            def answer(rate: float, sent: Served = sent) -> dict[str, Any]:
                _, seconds, waiting = sent._rate(rate)
                spent.append(seconds)
                return {"request_rate": rate, "goodput": 0.0 if waiting else rate}

            rising(workload.request_rates, answer)
        return spent[0] + sum(spent)  # the first twice, to warm up

    def _rate(self, rate: float) -> tuple[int, float, bool]:
        """Requests of one rate, the seconds they take, and whether they wait for each other."""
        count = max(self.point.min_requests, round(rate * self.point.seconds))
        busy = self._requests(count)
        return count, max(count / rate, busy) + self._requests(1), rate * busy / count > BUSY

    def forward(self) -> float:
        """Single steps over prompt tokens, each after one to warm up."""
        size, spec = self.work.size, self.work.spec
        passes = [sum(prefill_flops(size.arch, spec, tokens).values()) for tokens in self.point.batch_tokens]
        return 2 * self.point.repeats * sum(self._compute(flops) + self._step() for flops in passes)

    def decoding(self) -> float:
        """Whole batches that decode, each once more to warm up."""
        return (1 + self.point.repeats) * sum(self._requests(batch) for batch in self.point.batch_sizes)


STAGE = Stage(
    name="measure",
    output="serving/{point}/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.measure.job:measure_point",
    gpus="serve",
    seconds=seconds,
    engine=start,
)
