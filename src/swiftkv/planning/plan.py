"""The plan of a run as numbers: in all, by rule, and for each artifact what it alone would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from swiftkv.config import Config
from swiftkv.planning.estimate import SURE, UNKNOWN, Estimate, estimates, net_seconds, written
from swiftkv.planning.jobs import ancestors, parents, plan_jobs
from swiftkv.planning.memory import Training, trainings
from swiftkv.planning.profile import Profile, read_config, read_profile
from swiftkv.pricing.work import Download, PlannedJob, Work, once
from swiftkv.stages import stage_of

HOUR = 3600
# What stages write, in the order in which plans list it.
WRITTEN = ("checkpoints", "training state", "teacher states", "moments", "data", "models", "other")


@dataclass
class Cost:
    """What some jobs take together.

    Attributes:
        cluster_jobs, local_jobs: how many; on one machine all are local.
        uncounted: jobs among them of which nothing can be said yet.
        seconds: the time of all jobs one after another.
        gpu_seconds: times their GPUs, by how sure that is.
        wall_seconds: at least so long at the profile's parallelism.
        gpus: the GPUs of its largest job.
        written: bytes that stay, by kind.
        downloads: from the hub.
    """

    cluster_jobs: int = 0
    local_jobs: int = 0
    uncounted: int = 0
    seconds: float = 0.0
    gpu_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SURE, 0.0))
    wall_seconds: float = 0.0
    gpus: int = 0
    written: dict[str, int] = field(default_factory=dict)
    downloads: list[Download] = field(default_factory=list)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours, however sure."""
        return sum(self.gpu_seconds.values()) / HOUR

    @property
    def downloaded(self) -> int:
        """Bytes of all downloads whose size is known."""
        return sum(item.bytes or 0 for item in self.downloads)

    @property
    def disk(self) -> int:
        """Bytes that stay, downloads included."""
        return sum(self.written.values()) + self.downloaded


@dataclass
class Shared:
    """Jobs that measure with an engine, the engines that they need at least, and what the other starts would take."""

    jobs: int
    engines: int
    seconds: float
    gpu_hours: float


@dataclass
class Plan:
    """A planned run.

    Attributes:
        profile: the profile that it runs with.
        config: its configuration.
        jobs, estimates: what there is to do, and what each takes alone.
        seconds: what each takes in this run, where jobs share engines.
        trainings: those on GPUs, and what memory they need.
        shared: what sharing engines saves; on a cluster at most, as jobs that run side by side share none.
        total: all of it.
        artifacts: artifact -> what it alone would take; those with nothing left to do are missing.
    """

    profile: Profile
    config: Config
    jobs: list[PlannedJob]
    estimates: list[Estimate]
    seconds: list[float]
    trainings: list[Training]
    shared: Shared
    total: Cost
    artifacts: dict[str, Cost]


def make_plan(
    root: Path,
    profile: str | Path,
    targets: Sequence[str] = (),
    configfiles: Sequence[str] = (),
    *,
    everything: bool = False,
) -> Plan:
    """Plan a run and estimate it.

    Args:
        root: folder of the project.
        profile: its folder, or its name under profiles/.
        targets: files; none stands for all artifacts.
        configfiles: added to the profile's own.
        everything: also what is finished.

    Raises:
        UserError: the profile, the configuration or a target is not what it has to be.
    """
    found = read_profile(profile, root, configfiles)
    config = read_config(root, found)
    jobs = plan_jobs(found, root, targets, everything=everything)
    # What is finished tells how long its like takes; a dry run that names it is only worth its seconds if there is any.
    finished: list[PlannedJob] = []
    if not everything and any(Path(config.pathvars.benchmarks).rglob("*.tsv")):
        left = {job.outputs for job in jobs}
        finished = [job for job in plan_jobs(found, root, everything=True) if job.outputs not in left]
    return estimate_plan(root, found, config, jobs, finished)


def estimate_plan(
    root: Path, profile: Profile, config: Config, jobs: list[PlannedJob], finished: Iterable[PlannedJob] = ()
) -> Plan:
    """What planned jobs take, in all and for each artifact among them."""
    graph, works = parents(jobs), [Work(job, config, root) for job in jobs]
    priced = estimates(works, [Work(job, config, root) for job in finished])
    in_turn = profile.cores is not None  # else jobs run side by side, and each may have to start its own engine
    sizes = [written(work) for work in works]
    downloads = [stage_of(work.job.rule).downloads(work) for work in works]

    def net(numbers: Sequence[int]) -> list[float]:
        chosen = [priced[number] for number in numbers]
        return net_seconds(chosen) if in_turn else [estimate.seconds for estimate in chosen]

    def cost(numbers: set[int]) -> Cost:
        chosen = sorted(numbers)
        seconds = dict(zip(chosen, net(chosen), strict=True))
        total = Cost(
            cluster_jobs=sum(profile.cores is None and not jobs[number].local for number in chosen),
            uncounted=sum(priced[number].sure == UNKNOWN for number in chosen),
            downloads=once(item for number in chosen for item in downloads[number]),
            gpus=max((jobs[number].gpus for number in chosen), default=0),
            wall_seconds=wall_seconds(jobs, seconds, {number: graph[number] for number in chosen}, profile),
        )
        total.local_jobs = len(chosen) - total.cluster_jobs
        for number in chosen:
            total.seconds += seconds[number]
            total.gpu_seconds[priced[number].sure] += seconds[number] * jobs[number].gpus
            for what, size in sizes[number].items():
                total.written[what] = total.written.get(what, 0) + size
        return total

    artifacts = {
        job.wildcards["artifact"]: cost(ancestors(number, graph))
        for number, job in enumerate(jobs)
        if "artifact" in job.wildcards
    }
    order = [name for name in config.artifacts if name in artifacts]
    shared = _shared(jobs, priced)
    total, seconds = cost(set(graph)), net(range(len(jobs)))
    in_order = {name: artifacts[name] for name in order}
    return Plan(profile, config, jobs, priced, seconds, trainings(works), shared, total, in_order)


def _shared(jobs: Sequence[PlannedJob], priced: Sequence[Estimate]) -> Shared:
    saved = [estimate.seconds - net for estimate, net in zip(priced, net_seconds(priced), strict=True)]
    return Shared(
        jobs=sum(estimate.engine is not None for estimate in priced),
        engines=len({estimate.engine for estimate in priced} - {None}),
        seconds=sum(saved),
        gpu_hours=sum(seconds * job.gpus for seconds, job in zip(saved, jobs, strict=True)) / HOUR,
    )


def wall_seconds(
    jobs: Sequence[PlannedJob],
    seconds: Sequence[float] | Mapping[int, float],
    graph: Mapping[int, Sequence[int]],
    profile: Profile,
) -> float:
    """The least that a run takes: its longest chain of jobs, or the work that shares what there is least of.

    Args:
        jobs, seconds: all that are planned, and what each takes.
        graph: those of the run, by place -> the jobs that each waits for.
        profile: its jobs or cores at once and its limits, such as GPUs, are shared.
    """

    @cache
    def end(number: int) -> float:
        return seconds[number] + max(map(end, graph[number]), default=0.0)

    def share(job: PlannedJob, name: str) -> int:
        slots = int(not job.local) if profile.cores is None else job.threads
        return slots if name == "slots" else job.resources.get(name) or 0  # a rule may ask for None

    limits = {**profile.resources, "slots": profile.cores or profile.jobs}
    shares = [
        sum(min(share(jobs[number], name), limit) * seconds[number] for number in graph) / limit
        for name, limit in limits.items()
    ]
    return max([*map(end, graph), *shares], default=0.0)


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:,.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
