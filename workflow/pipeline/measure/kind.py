"""What a kind of serving measurement has of its own; `run.measure` does what all have in common."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from pipeline.config.points import Requests
from pipeline.measure.engines import Engines
from pipeline.measure.memory import Budget
from pipeline.measure.point import Point, Settings, Subject, engine_arguments, engine_environment, max_model_len
from pipeline.measure.worker import Worker, module, worker

Numbers = dict[str, Any]
BASELINE, OWN = "baseline", "own"  # the sides of a measurement in turns


@dataclass(frozen=True)
class Run(Generic[Settings]):
    """One measurement under way.

    Attributes:
        work: folder for what is finished of the measurement.
        budget: the memory for the KV cache.
        engines: those of the job.
        single: as in `Kind`.
        longest: tokens of a sequence that the engine is to be ready for at least, for other points on it.
        baseline: the command of the baseline's engine, where both are measured in turns.
        heldout: chats to send, for points with `dataset`.
    """

    subject: Subject
    point: Point[Settings]
    work: Path
    budget: Budget
    engines: Engines
    single: bool = False
    longest: int = 0
    baseline: list[str] | None = None
    heldout: Path | None = None

    @property
    def log(self) -> Path:
        """The file that holds what vLLM prints."""
        return self.engines.log

    def arguments(self, prompt: int, output: int) -> list[str]:
        """vLLM's engine arguments for requests of so many tokens; raises as `max_model_len`."""
        length = max(self.longest, max_model_len(self.subject.config, prompt, output))
        return engine_arguments(self.subject, self.point, length, self.budget)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of vLLM."""
        environment = engine_environment(self.point.gpus, self.point.threads, self.subject.plugin)
        alone = self.single and self.point.tensor_parallel_size == 1
        return environment | ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if alone else {})


def repeats(point: Point, variant: str) -> int:
    """How often a point is measured: of the baseline half as often where variants take turns with it, which measures it again."""
    asked = point.settings.repeats
    return math.ceil(asked / 2) if point.in_turns and variant == BASELINE else asked


@dataclass(frozen=True)
class Kind:
    """One kind of serving measurement.

    Attributes:
        lengths: prompt and output tokens of a point's requests, the longest where there are several.
        settings: what was asked for, beside what all points have.
        command: starts vLLM.
        numbers: runs the command and gives the record's `result`; raises `EngineFailure`.
        headline: the main number of a result, in words.
        seen: prompt and output tokens of the requests as they came, where only the result tells; for the costs.
        alone: it times single requests or steps, so on a cluster no other job may run on its node. Those wait for the
            processor, whose memory and clock a neighbor shares; a full batch waits for the GPU, which is its own.
        server: it asks a server, others an engine.
        single: on one device the engine is in the program's own process, so that nothing stands between.
    """

    lengths: Callable[[Point], tuple[int, int]]
    settings: Callable[[Point], dict[str, Any]]
    command: Callable[[Run], list[str]]
    numbers: Callable[[Run, list[str]], Numbers]
    headline: Callable[[Numbers], str]
    seen: Callable[[Point, Numbers], tuple[int, int]] | None = None
    alone: bool = False
    server: bool = False
    single: bool = False


def requested(point: Point[Requests]) -> tuple[int, int]:
    """Prompt and output tokens of a point whose requests are all alike."""
    return point.settings.input_tokens, point.settings.output_tokens


def engine_command(lengths: Callable[[Point], tuple[int, int]]) -> Callable[[Run], list[str]]:
    """The command of the kinds that measure an engine without a server in front of it."""

    def command(run: Run) -> list[str]:
        model = ["--model", str(run.subject.folder), "--skip-tokenizer-init"]
        return module("pipeline.measure.engine_program", *model, *run.arguments(*lengths(run.point)))

    return command


@contextlib.contextmanager
def engines(run: Run, command: list[str]) -> Iterator[dict[str, Worker]]:
    """The engine programs of `BASELINE` and `OWN`, to be asked for the jobs of `engine_program`.

    They remember nothing of other measurements. `OWN` is alone where nothing is measured in turns.
    """
    with contextlib.ExitStack() as up:
        sides: dict[str, Worker] = {}
        if run.baseline is not None:
            environment = engine_environment(run.point.gpus, run.point.threads)
            log = run.log.with_name("baseline.log")
            sides[BASELINE] = up.enter_context(_program(run.engines, run.baseline, log, environment))
        sides[OWN] = up.enter_context(_program(run.engines, command, run.log, run.environment))
        if len(sides) > 1:
            for program in sides.values():  # nothing starts while another is measured
                program.ask({"do": "ready"})
        yield sides


@contextlib.contextmanager
def _program(engines: Engines, command: list[str], log: Path, environment: dict[str, str]) -> Iterator[Worker]:
    with engines.get((command, environment), lambda: worker(command, log, environment, "the vLLM engine")) as program:
        if engines.used:
            program.ask({"do": "forget"})
        yield program


def in_turns(
    sides: Mapping[str, Worker], job: Mapping[str, Any], repeats: int, warm_up: Mapping[str, Any] | None = None
) -> dict[str, list[dict[str, float]]]:
    """Each side's answers to a job, in turns (A B B A ...), so that a slower minute of the machine meets all of them.

    Args:
        warm_up: a job before each: an engine's memory cools while it waits.
    """
    answers: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(repeats):
        for side in reversed(list(sides)) if turn % 2 else sides:
            if warm_up is not None:
                sides[side].ask(warm_up)
            answers[side].append(sides[side].ask(job))
    return answers


def samples(of_sides: Mapping[str, Any], unit: str) -> Numbers:
    """What was measured repeatedly, as records have it: in turn with the baseline's, None where there is none."""
    return {f"samples_{unit}": of_sides[OWN], f"baseline_samples_{unit}": of_sides.get(BASELINE) or None}
