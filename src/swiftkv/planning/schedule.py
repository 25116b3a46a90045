"""When a run ends: its jobs in Snakemake's order, as many at once as the profile allows and nothing waiting in a queue."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftkv.planning.jobs import PlannedJob
from swiftkv.planning.profile import Profile


@dataclass(frozen=True)
class Schedule:
    """A run's course.

    Attributes:
        seconds: from the first job's start to the last one's end.
        gpus: the most GPUs in use at once.
    """

    seconds: float
    gpus: int


def run(
    jobs: Sequence[PlannedJob], seconds: Sequence[float], graph: Mapping[int, Sequence[int]], profile: Profile
) -> Schedule:
    """Play a run.

    Args:
        jobs: all of it.
        seconds: of each.
        graph: the jobs that each waits for.
        profile: cores or jobs at once, and limits such as GPUs; on a cluster every job starts when it is submitted.
    """
    limits = dict(profile.resources)
    limits["slots"] = profile.jobs if profile.cores is None else profile.cores
    free = dict(limits)

    def needs(number: int) -> dict[str, int]:
        job = jobs[number]
        if profile.cores is None:
            slots = 0 if job.local else 1
        else:
            slots = min(job.threads, profile.cores)
        found = {"slots": slots}
        for name in profile.resources:
            asked = job.gpus if name == "gpu" else job.resources.get(name, 0)
            found[name] = min(asked, limits[name])
        return found

    waiting_for = {number: set(graph[number]) for number in graph}
    children: dict[int, list[int]] = {number: [] for number in graph}
    for number, before in waiting_for.items():
        for parent in before:
            children[parent].append(number)
    ready = sorted((number for number in graph if not waiting_for[number]), key=lambda n: (-jobs[n].priority, n))
    running: list[tuple[float, int]] = []
    now, gpus, most = 0.0, 0, 0
    while ready or running:
        for number in list(ready):
            asked = needs(number)
            if all(free[name] >= amount for name, amount in asked.items()):
                ready.remove(number)
                for name, amount in asked.items():
                    free[name] -= amount
                heapq.heappush(running, (now + seconds[number], number))
                gpus += jobs[number].gpus
                most = max(most, gpus)
        now, number = heapq.heappop(running)
        gpus -= jobs[number].gpus
        for name, amount in needs(number).items():
            free[name] += amount
        for child in children[number]:
            waiting_for[child].discard(number)
            if not waiting_for[child]:
                ready.append(child)
        ready.sort(key=lambda n: (-jobs[n].priority, n))
    return Schedule(now, most)
