"""Measures one serving point with vLLM."""

from __future__ import annotations

from typing import Any

from swiftkv.cost import parameter_count
from swiftkv.measure.kind import BASELINE, repeats
from swiftkv.measure.latency import number_of_requests
from swiftkv.measure.point import Point
from swiftkv.measure.rates import TTFT_FACTOR, search
from swiftkv.measure.run import KINDS, engine_key
from swiftkv.measure.throughput import number_of_prompts
from swiftkv.predict.engine import Limits
from swiftkv.predict.memory import cache_tokens, weight_bytes
from swiftkv.predict.step import Served, Step
from swiftkv.pricing.serving import busy_seconds
from swiftkv.pricing.work import Work
from swiftkv.stages.stage import Stage

BUSY = 0.9  # load above which a server's queue makes requests wait (`swiftkv.measure.rates`)


def seconds(work: Work) -> float:
    """The engine's start, and what it is asked."""
    asked = _asked(work)
    measuring = {
        "throughput": asked.throughput,
        "latency": asked.latency,
        "forward_time": asked.forward,
        "decode": asked.decoding,
        "kv_capacity": lambda: 0.0,
        "answer": asked.answer,
    }[asked.settings.measure]
    return start(work)[1] + (0.0 if asked.out_of_memory else measuring() * asked.sides)


def start(work: Work) -> tuple[str, float]:
    """The engine that a point needs, and the seconds of its start; points that need the same one may share it."""
    asked = _asked(work)
    of = "/".join(work.job.wildcards.get(part, "") for part in ("model", "variant", "kv_cache"))
    alone = work.machine["server" if KINDS[asked.settings.measure].server else "engine"]
    seconds = alone + work.machine.load(asked.weights / work.machine.together)
    return f"{of} {engine_key(asked.point)}", seconds * asked.sides


def _asked(work: Work) -> Asked:
    name = work["point"]
    point = Point.read(name, work.config.point(name), gpus=work.job.gpus, threads=work.job.threads)
    return Asked(work, point, *KINDS[point.settings.measure].lengths(point))


class Asked:
    """One model behind one engine, and what a point asks of it: requests of so many prompt and output tokens."""

    def __init__(self, work: Work, point: Point, prompt: int, output: int) -> None:
        self.work, self.point, self.settings, machine = work, point, point.settings, work.machine
        self.prompt, self.output = prompt, output
        fp8 = work.size.fp8 or work.model.quantization == "fp8"
        parameters = parameter_count(work.size.config, work.spec)
        fp8_cache, merged = work.job.wildcards.get("kv_cache") == "fp8", work.variant.merge_all_layers
        self.served = Served(work.size.arch, work.spec, machine.device, machine.together, fp8, fp8_cache, merged)
        self.weights = weight_bytes(self.served, parameters)
        cache = cache_tokens(self.served, parameters, point.engine, self.settings.memory_gib)
        self.limits = Limits(point.engine["max_num_batched_tokens"], point.engine["max_num_seqs"], cache)

    @property
    def out_of_memory(self) -> bool:
        """Whether the engine ends at its start, as the cache does not hold one request."""
        return self.limits.cache is not None and self.limits.cache < self.prompt + self.output

    @property
    def sides(self) -> int:
        """How many engines are measured: with the baseline's, where it takes turns with a variant."""
        return 2 if self.point.in_turns and self.work["variant"] != BASELINE else 1

    @property
    def repeats(self) -> int:
        """How often it is measured."""
        return repeats(self.point, self.work["variant"])

    def _requests(self, count: int) -> float:
        """Seconds of so many requests, as many at once as the engine takes."""
        return busy_seconds(self.served, self.limits, self.prompt, self.output, count)

    def throughput(self) -> float:
        """All requests at once, each time after one to warm up."""
        return self.repeats * self._requests(number_of_prompts(self.point) + self.settings.warmups)

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

        search(self.settings.request_rates, answer, self.settings.refine_steps)
        return spent[0] + sum(spent)  # the first twice, to warm up

    def _rate(self, rate: float) -> tuple[int, float, bool]:
        """Requests of one rate, the seconds they take, and whether they wait for each other."""
        count = number_of_requests(self.point, rate)
        busy = self._requests(count)
        return count, max(count / rate, busy) + self._requests(1), rate * busy / count > BUSY

    def forward(self) -> float:
        """Single steps over prompt tokens, each after one to warm up."""
        steps = [Step(tokens, tokens * (tokens + 1) // 2, 1, tokens) for tokens in self.settings.batch_tokens]
        return 2 * self.repeats * sum(map(self.served.seconds, steps))

    def answer(self) -> float:
        """One request at a time, each after one to warm up."""
        return 2 * self.repeats * self._requests(1)

    def decoding(self) -> float:
        """Whole batches that decode, each once more to warm up."""
        return (1 + self.repeats) * sum(self._requests(batch) for batch in self.settings.batch_sizes)


STAGE = Stage(
    name="measure",
    output="serving/{point}/{model}/{variant}/{kv_cache}.json",
    run="swiftkv.measure.job:measure_point",
    gpus="serve",
    seconds=seconds,
    engine=start,
)
