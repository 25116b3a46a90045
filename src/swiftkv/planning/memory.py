"""Whether the trainings of a plan fit into the memory of their GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swiftkv.errors import UserError
from swiftkv.pricing.training import Memory
from swiftkv.pricing.work import Work
from swiftkv.stages import stage_of


@dataclass(frozen=True)
class Training:
    """A planned training on GPUs.

    Attributes:
        model, variant: names.
        gpus: in all.
        memory: what each holds; None where it cannot be said.
        why: the reason for that.
        room: bytes of each that tensors may take.
    """

    model: str
    variant: str
    gpus: int
    memory: Memory | None
    why: str
    room: float

    @property
    def fits(self) -> bool:
        """Whether there is room, as far as it can be said."""
        return self.memory is None or self.memory.peak <= self.room


def trainings(works: Iterable[Work]) -> list[Training]:
    """Those of planned jobs that train on GPUs."""
    found = []
    for work in works:
        function = stage_of(work.job.rule).memory
        if function is None or not work.job.gpus:
            continue
        try:
            memory, why = function(work), ""
        except UserError as error:
            memory, why = None, str(error)
        room = work.machine.training_memory
        found.append(Training(work["model"], work["variant"], work.job.gpus, memory, why, room))
    return found
