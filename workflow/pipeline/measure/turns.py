"""Engines asked for measurements, a variant's in turns with the baseline's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic

from pipeline.measure import process
from pipeline.measure.memory import Budget
from pipeline.measure.point import BASELINE, Point, Settings, Subject, engine_arguments, engine_environment
from pipeline.measure.worker import Engines, Worker, module, worker

OWN = "own"  # the other side of a measurement in turns


@dataclass(frozen=True)
class Run(Generic[Settings]):
    """One measurement under way.

    Attributes:
        work: folder for what is finished of the measurement.
        engines: those of the job.
        longest: tokens of a sequence that the engine is to be ready for at least, for other points on it.
        budget: the memory for the KV cache; `run.measure` fills it in.
        baseline: that of the baseline, where both are measured in turns.
        heldout: chats to send, for points with `dataset`.
        identity: all that the result depends on, see `job.identity`.
    """

    subject: Subject
    point: Point[Settings]
    work: Path
    engines: Engines
    longest: int = 0
    budget: Budget | None = None
    baseline: Run | None = None
    heldout: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The file that holds what vLLM prints."""
        return self.engines.log

    @property
    def command(self) -> list[str]:
        """The command that starts vLLM, of a server without host, port and name; raises as `Point.max_model_len`."""
        length = max(self.longest, self.point.max_model_len(self.subject.config))
        arguments = engine_arguments(self.subject, self.point, length, self.budget)
        if self.point.server:
            return [process.program("vllm"), "serve", str(self.subject.folder), *arguments]
        model = ["--model", str(self.subject.folder), "--skip-tokenizer-init"]
        return module("pipeline.measure.engine_program", *model, *arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of vLLM."""
        environment = engine_environment(self.point.gpus, self.point.threads, self.subject.plugin)
        alone = self.point.single and self.point.tensor_parallel_size == 1
        return environment | ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if alone else {})


@contextlib.contextmanager
def sides(run: Run) -> Iterator[dict[str, Worker]]:
    """The engine programs of `BASELINE` and `OWN`, to be asked for the jobs of `engine_program`.

    They remember nothing of other measurements. `OWN` is alone where nothing is measured in turns.
    """
    runs = {OWN: run} if run.baseline is None else {BASELINE: run.baseline, OWN: run}
    with contextlib.ExitStack() as up:
        programs: dict[str, Worker] = {}
        for side, each in runs.items():
            log = run.log if each is run else run.log.with_suffix(".baseline.log")
            command = each.command, log, each.environment
            programs[side] = up.enter_context(
                run.engines.get(side, command, partial(worker, *command, "the vLLM engine"))
            )
            if run.engines.used:
                programs[side].ask({"do": "forget"})
        if len(programs) > 1:
            for program in programs.values():  # nothing starts while another is measured
                program.ask({"do": "ready"})
        yield programs


def in_turns(
    programs: Mapping[str, Worker], job: Mapping[str, Any], repeats: int, warm_up: Mapping[str, Any] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Each side's answers to a job, in turns (A B B A ...), so that a slower minute of the machine meets all of them.

    Args:
        warm_up: a job before each: an engine's memory cools while it waits.
    """
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in programs}
    for turn in range(repeats):
        for side in reversed(list(programs)) if turn % 2 else programs:
            if warm_up is not None:
                programs[side].ask(warm_up)
            answers[side].append(programs[side].ask(job))
    return answers


def samples(of_sides: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """What was measured repeatedly, as records have it: in turn with the baseline's, None where there is none."""
    return {f"samples_{unit}": of_sides[OWN], f"baseline_samples_{unit}": of_sides.get(BASELINE) or None}
