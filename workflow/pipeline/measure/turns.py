"""Engines asked for measurements, a variant's in turns with the baseline's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.measure.point import BASELINE, Point, Subject
from pipeline.measure.worker import Worker, worker
from swiftkv.io import text_of

OWN = "own"  # the other side of a measurement in turns


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
        """What runs for a side; it is started if nothing does."""
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
        memory: the vLLM argument that sets it.
        starts: command and environment of vLLM, by side: of `OWN`, and of `BASELINE` where both are measured in turns.
        chats: what points with `dataset` send.
    """

    subject: Subject
    point: Point
    engines: Engines
    memory: dict[str, Any]
    starts: Mapping[str, tuple[list[str], dict[str, str]]]
    chats: Path | None = None

    def in_turns(
        self, jobs: Sequence[Mapping[str, Any]], warm_up: Mapping[str, Any] | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Each side's answers to jobs of `engine_program`, in turns (A B B A ...), so that a slower minute meets both.

        Args:
            warm_up: a job before each: an engine's memory cools while it waits.
        """
        log = self.engines.log
        logs = {OWN: log, BASELINE: log.with_suffix(".baseline.log")}
        programs: dict[str, Worker] = {}
        for side, (command, environment) in self.starts.items():
            start = partial(worker, command, logs[side], environment, "the vLLM engine")
            programs[side] = self.engines.get(side, start)
            if self.point.gpus:  # vLLM takes what another engine allocates meanwhile for its own
                programs[side].ask({"do": "ready"})
        for program in programs.values():  # nothing starts while another is measured
            program.ask({"do": "ready"})
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in programs}
        for turn, job in enumerate(jobs):
            for side in reversed(list(programs)) if turn % 2 else programs:
                if warm_up is not None:
                    programs[side].ask(warm_up)
                answers[side].append(programs[side].ask(job))
        return answers


def samples(answers: Mapping[str, Sequence[Any]], unit: str, time: Callable[[Any], Any]) -> dict[str, Any]:
    """What was measured repeatedly, as records have it: in turn with the baseline's, None where there is none."""
    return {
        f"{side}samples_{unit}": [time(answer) for answer in answers[name]] if name in answers else None
        for side, name in (("", OWN), ("baseline_", BASELINE))
    }
