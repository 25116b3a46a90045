"""How long each planned job takes, and how sure that is: measured where it or its like has run, else as its stage says."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from swiftkv.errors import UserError
from swiftkv.pricing.work import PlannedJob, Work, if_known
from swiftkv.stages import stage_of

# How sure a number is, the surest first.
MEASURED, SCALED, ESTIMATED, GUESSED, UNKNOWN = "measured", "scaled", "estimated", "guessed", "unknown"
SURE = {
    MEASURED: "this very job has run here before",
    SCALED: "estimated, times what finished jobs of the same rule and model took of their estimates",
    ESTIMATED: "FLOPs and bytes on a machine as assumed below",
    GUESSED: "little more than a start-up time or a text of assumed length",
    UNKNOWN: "cannot be said yet; counted as nothing",
}


@dataclass(frozen=True)
class Estimate:
    """What a job takes.

    Attributes:
        seconds: wall time of the job itself.
        sure: a key of `SURE`.
        why: the reason why an unknown one is unknown.
        engine: what it starts and may share with other jobs; None where nothing is shared, or where it has been measured.
        start: seconds of that start, which are among its seconds.
    """

    seconds: float
    sure: str
    why: str = ""
    engine: str | None = None
    start: float = 0.0


def estimate(work: Work) -> Estimate:
    """The estimate of a job that has no like; those that run no model are guesses."""
    stage = stage_of(work.job.rule)
    try:
        engine, start = stage.engine(work) if stage.engine else (None, 0.0)
        return Estimate(stage.seconds(work), ESTIMATED if stage.gpus else GUESSED, "", engine, start)
    except UserError as error:
        return Estimate(0.0, UNKNOWN, str(error))


def estimates(planned: list[Work], finished: Iterable[Work] = ()) -> list[Estimate]:
    """The estimates of jobs, those that have run or resemble finished ones by their measured times.

    Args:
        planned: still to do.
        finished: others of the same configuration; those with a benchmark file count.
    """
    computed = [(work.job, estimate(work), measured_seconds(work.job)) for work in [*planned, *finished]]
    # Of jobs that share an engine, one took the time of many.
    known = [(job, alone, seconds) for job, alone, seconds in computed if seconds is not None and alone.seconds]
    nets = net_seconds([alone for _, alone, _ in known])
    ratios: dict[tuple[str, str | None], list[float]] = {}
    for (job, alone, seconds), net in zip(known, nets, strict=True):
        sums = ratios.setdefault(_likes(job), [0.0, 0.0])
        sums[0] += seconds
        sums[1] += net

    def best(job: PlannedJob, alone: Estimate, seconds: float | None) -> Estimate:
        if seconds is not None:
            return Estimate(seconds, MEASURED)
        if (like := ratios.get(_likes(job))) and alone.sure != UNKNOWN:
            ratio = like[0] / like[1]
            return replace(alone, seconds=alone.seconds * ratio, start=alone.start * ratio, sure=SCALED)
        return alone

    return [best(*of_job) for of_job in computed[: len(planned)]]


def net_seconds(jobs: Iterable[Estimate]) -> list[float]:
    """Seconds of jobs that come one after another: each engine that they share starts once, in the first of them."""
    started: set[str] = set()
    seconds = []
    for job in jobs:
        again = job.engine is not None and job.engine in started
        seconds.append(job.seconds - job.start if again else job.seconds)
        started |= {job.engine} if job.engine else set()
    return seconds


def written(work: Work) -> dict[str, int]:
    """Bytes that a job needs room for, downloads apart, by what they are; nothing of what cannot be said yet."""
    sizes = if_known(lambda: stage_of(work.job.rule).written(work), {})
    return {what: math.ceil(size) for what, size in sizes.items() if size}


def measured_seconds(job: PlannedJob) -> float | None:
    """Wall time of a job as Snakemake's benchmark file has it; None where it has not run to its end."""
    if job.benchmark is None or not Path(job.benchmark).is_file():
        return None
    with open(job.benchmark, encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    try:
        return float(rows[-1]["s"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None  # Snakemake writes it at the job's end; a damaged one says nothing


def _likes(job: PlannedJob) -> tuple[str, str | None]:
    return job.rule, job.wildcards.get("model")
