"""Run measurements on vLLM engines, alternating between a variant and the baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from pipeline.engines.worker import Worker, worker
from pipeline.measure.subject import BASELINE, Subject
from swiftkv.io import text_of

VARIANT = "variant"  # the side that is measured, alone or alternating with `BASELINE`
MAX_BUSY_CORES = 0.1  # cores that other programs may keep busy during a turn
MAX_RETRIES = 2  # turns of a series that are repeated because of them


class Engines(contextlib.ExitStack):
    """The engines or servers of a job, one of each side, which stay up from point to point; all end with the block.

    Args:
        log: file for what that of the measured variant prints.

    Attributes:
        longest: tokens of the longest sequence that an engine is to be ready for, beside those of the point at hand.
    """

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log, self.longest = log, 0
        self._up: dict[str, Any] = {}
        log.unlink(missing_ok=True)

    def get(self, side: str, start: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
        """Return the program of a side; start it if there is none."""
        if side not in self._up:
            self._up[side] = self.enter_context(start())
        return self._up[side]

    def close(self) -> None:
        """End all that runs; the next measurement starts anew."""
        self._up.clear()
        super().close()

    @property
    def text(self) -> str:
        """Everything that the measured variant's has printed."""
        return text_of(self.log)


@dataclass(frozen=True)
class Run:
    """One measurement under way.

    Attributes:
        gpus: GPUs that an engine is spread over; 0 serves on the processor.
        memory: the vLLM argument that sets it.
        starts: command and environment of vLLM, by side: of `VARIANT`, and of `BASELINE` where both are measured in turns.
        chats: what points with `dataset` send.
    """

    subject: Subject
    gpus: int
    engines: Engines
    memory: dict[str, Any]
    starts: Mapping[str, tuple[list[str], dict[str, str]]]
    chats: Path | None = None

    def alternate(
        self, jobs: Sequence[Mapping[str, Any]], warm_up: Mapping[str, Any] | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Run jobs of `engine_program` on each side, alternating (A B B A ...), so that a slower minute meets both.

        On a processor, repeat turns in which other programs kept more than `MAX_BUSY_CORES` cores busy, at most `MAX_RETRIES` of
        them.

        Args:
            jobs: one a turn.
            warm_up: a job before each: an engine's memory cools while it waits.

        Returns:
            By side, the answer to each job; `taken` is how often the turn was.
        """
        log = self.engines.log
        logs = {VARIANT: log, BASELINE: log.with_suffix(".baseline.log")}
        programs: dict[str, Worker] = {}
        for side, (command, environment) in self.starts.items():
            start = partial(worker, command, logs[side], environment, "the vLLM engine")
            programs[side] = self.engines.get(side, start)
            if self.gpus:  # vLLM takes what another engine allocates meanwhile for its own
                programs[side].ask({"do": "ready"})
        for program in programs.values():  # nothing starts while another is measured
            program.ask({"do": "ready"})
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in programs}
        left = MAX_RETRIES
        for turn, job in enumerate(jobs):
            pair, taken = {}, 0
            while not taken or (left and max(one.get("other_cores", 0) for one in pair.values()) > MAX_BUSY_CORES):
                left -= bool(taken)
                taken += 1
                for side in reversed(list(programs)) if turn % 2 else programs:
                    if warm_up is not None:
                        programs[side].ask(warm_up)
                    pair[side] = programs[side].ask(job)
            for side, one in pair.items():
                answers[side].append(one | {"taken": taken})
        return answers


def samples(answers: Mapping[str, Sequence[Any]], unit: str, time: Callable[[Any], Any]) -> dict[str, Any]:
    """Collect repeated samples of both sides as fields of a record; None if a side was not measured.

    Args:
        answers: by side, those of `Run.alternate`, or a list of them a batch.
        unit: of the samples, for the names of their fields.
        time: the sample of an answer.

    Returns:
        samples_{unit} and baseline_samples_{unit}; on a processor also processor seconds, the cores that other programs
        kept busy, and how often each turn was taken.
    """

    def each(value: Callable[[Any], Any], nested: Any) -> Any:
        return [each(value, one) for one in nested] if isinstance(nested, list) else value(nested)

    fields = {f"samples_{unit}": time}
    first = answers[VARIANT][0]
    if "cpu_seconds" in (first[0] if isinstance(first, list) else first):
        fields |= {f"samples_{name}": itemgetter(name) for name in ("cpu_seconds", "other_cores", "taken")}
    return {
        side + name: each(value, answers[of]) if of in answers else None
        for name, value in fields.items()
        for side, of in (("", VARIANT), ("baseline_", BASELINE))
    }
