"""`make plan`: jobs, GPU-hours, wall time, disk, downloads and licenses of a run before it starts, rule by rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from pipeline.config import Config
from pipeline.config.checks import at
from pipeline.run.estimate import HOUR, estimates
from pipeline.run.jobs import PlannedJob, Profile, parents, plan_jobs, read_config
from pipeline.run.sizes import Download, Size, Unreachable, downloads, once
from swiftkv.cost import GIGA


@dataclass(frozen=True)
class Plan:
    """A planned run.

    Attributes:
        profile: the profile that it runs with.
        config: its configuration.
        jobs: the jobs to do.
        times: of each job, as `estimates` returns them.
        downloads: each once.
        wall_seconds: the least time of the run.
    """

    profile: Profile
    config: Config
    jobs: list[PlannedJob]
    times: pd.DataFrame
    downloads: list[Download]
    wall_seconds: float


def make_plan(profile: Profile, targets: Sequence[str] = (), *, everything: bool = False) -> Plan:
    """Plan a run and estimate it; the arguments are those of `plan_jobs`.

    Raises:
        UserError: as theirs, or the architecture of a model is not known.
    """
    config = read_config(profile)
    jobs = plan_jobs(profile, targets, everything=everything)
    for model in dict.fromkeys(job.wildcards["model"] for job in jobs if "model" in job.wildcards):
        with at(f"models.{model}"), suppress(Unreachable):  # what it needs is printed as unknown
            Size.of(config, model)
    # Finished jobs tell how long others take; a dry run that names them is worth its seconds only if there are any.
    finished: list[PlannedJob] = []
    if not everything and any(Path(config.pathvars.benchmarks).rglob("*.tsv")):
        left = {job.outputs for job in jobs}
        finished = [job for job in plan_jobs(profile, everything=True) if job.outputs not in left]
    return estimate_plan(profile, config, jobs, finished)


def estimate_plan(
    profile: Profile, config: Config, jobs: list[PlannedJob], finished: Sequence[PlannedJob] = ()
) -> Plan:
    """Estimate planned jobs; the arguments are those of `estimates`."""
    times, numbered = estimates(profile, config, jobs, finished), dict(enumerate(jobs))
    fetched = once(item for job in jobs for item in downloads(job, config))
    least = wall_seconds(numbered, dict(enumerate(times.seconds)), parents(numbered), profile)
    return Plan(profile, config, jobs, times, fetched, least)


def wall_seconds(
    jobs: Mapping[int, PlannedJob], seconds: Mapping[int, float], graph: Mapping[int, Sequence[int]], profile: Profile
) -> float:
    """Return the least time of a run: its longest chain of jobs, or the work that shares the scarcest resource.

    Args:
        jobs, seconds: all that are planned, and the time of each.
        graph: number of each job of the run -> numbers of the jobs that it waits for.
        profile: its jobs or cores at once and its limits, such as GPUs, are shared.
    """

    @cache
    def end(number: int) -> float:
        return seconds[number] + max(map(end, graph[number]), default=0.0)

    def share(job: PlannedJob, name: str) -> int:
        slots = int(not job.local) if profile.cores is None else job.threads
        return slots if name == "slots" else job.resources.get(name) or 0  # a rule may ask for None

    limits = {**profile.resources, "slots": profile.cores or profile.jobs or len(jobs) or 1}
    shares = [
        sum(min(share(jobs[number], name), limit) * seconds[number] for number in graph) / limit
        for name, limit in limits.items()
    ]
    return max([*map(end, graph), *shares], default=0.0)


def report(plan: Plan) -> str:
    """Return a plan as tables; the summary last, where it stays on the screen."""
    if not plan.jobs:
        return "Nothing is left to do."
    return "\n\n".join([_by_rule(plan), _downloads(plan), summary(plan)])


def _by_rule(plan: Plan) -> str:
    rows = []
    for rule, jobs in plan.times.groupby("rule", sort=False):
        unknown = any(jobs.why)
        rows.append(
            {
                "rule": rule,
                "jobs": len(jobs),
                "a job takes at most": _most([plan.jobs[number] for number in jobs.index]),
                "GPU-hours": _known(_number, jobs.gpu_hours.sum(), unknown),
                "longest job": _known(duration, jobs.seconds.max(), unknown),
                "all, one by one": _known(duration, jobs.seconds.sum(), unknown),
                "disk, GB": gigabytes(jobs.written.sum()),
                "measured": jobs.measured.sum() or "-",
            }
        )
    return "By rule; measured: jobs that have run before, or others of the same rule and model\n" + table(rows)


def _known(form: Callable[[float], str], amount: float, unknown: bool) -> str:
    """Return an amount as text, and that there is more if a part is unknown."""
    return (f"{form(amount)} + ?" if amount else "?") if unknown else form(amount)


def _most(jobs: Sequence[PlannedJob]) -> str:
    """Return the most GPUs, cores, memory and time that one of some jobs asks for; of several nodes, on each."""
    asked = [job.resources for job in jobs]
    nodes, memory, minutes, cores = (
        max(resources.get(name) or 0 for resources in asked) for name in ("nodes", "mem_mb", "runtime", "cpus_per_task")
    )
    gpus, nodes = max(job.gpus for job in jobs), nodes or 1
    cores = cores or max((job.resources.get("cpus_per_gpu") or 0) * job.gpus // nodes or job.threads for job in jobs)
    parts = [
        count(gpus // nodes, "GPU") if gpus else "",
        count(cores, "core"),
        f"{memory / 1000:.0f} GB" if memory else "",
        f"{minutes / 60:g} h" if minutes else "",
    ]
    return (f"{count(nodes, 'node')} of " if nodes > 1 else "") + ", ".join(filter(None, parts))


def _downloads(plan: Plan) -> str:
    if not plan.downloads:
        return "Nothing is downloaded."
    rows = [
        {
            "download": re.sub(r"(://[^/]+/).*/", r"\1.../", item.hub),
            "what": item.what,
            "size, GB": "not known here" if item.bytes is None else gigabytes(item.bytes),
            "license": f"accept it at https://huggingface.co/{item.hub}" if item.gated else "not gated",
        }
        for item in plan.downloads
    ]
    gated = any(item.gated for item in plan.downloads)
    note = "\nGated sources also need HF_TOKEN, or `hf auth login`." if gated else ""
    return f"Downloads, once each\n{table(rows)}{note}"


def summary(plan: Plan) -> str:
    """Return what a run takes in all."""
    profile, times = plan.profile, plan.times
    if profile.cores is None:
        here = sum(job.local for job in plan.jobs)
        jobs = f"{count(len(plan.jobs) - here, 'cluster job')} and {count(here, 'small one')} beside Snakemake"
        limits = [f"{profile.jobs or 'any number of'} jobs in the queue at once"]
    else:
        jobs, limits = count(len(plan.jobs), "job"), [count(profile.cores, "core")]
    limits += [f"{amount} {name}" for name, amount in profile.resources.items()]
    unknown = times.why[times.why != ""].value_counts(sort=False)
    least, gpus = "at least " if len(unknown) else "", times.gpus.max()
    fetched = sum(item.bytes or 0 for item in plan.downloads)
    lines = [
        f"Profile {profile.folder.name}: {jobs}",
        f"  GPU-hours   {_known(_number, times.gpu_hours.sum(), bool(least))}"
        + (f", up to {count(gpus, 'GPU')} a job" if gpus else ""),
        f"  wall time   at least {duration(plan.wall_seconds)}, with {', '.join(limits)}",
        f"  disk        {least}{gigabytes(times.written.sum() + fetched)} GB, {gigabytes(fetched)} GB of it downloads",
    ]
    lines += [f"  not counted {count(number, 'job')}, as {why}" for why, number in unknown.items()]
    for other in dict.fromkeys(job.wildcards.get("variant") for job in plan.jobs):
        if shown := [name for name, stand_in in plan.config.stand_ins.items() if stand_in == other]:
            lines.append(f"  stand-in    {other} for {', '.join(shown)}")
    return "\n".join(lines)


def table(rows: list[dict[str, object]]) -> str:
    """Return rows with the same columns as a table."""
    found = pd.DataFrame(rows)
    words = {"rule", "a job takes at most", "longest job", "all, one by one", "download", "what", "license"}
    aligned = ["left" if name in words else "right" for name in found]
    return found.to_markdown(index=False, tablefmt="simple", disable_numparse=True, colalign=aligned)


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:,.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def gigabytes(size: float) -> str:
    """Return bytes as gigabytes."""
    return _number(size / GIGA)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def count(number: int, noun: str) -> str:
    """Return a number with a noun: 1 job, 2 jobs."""
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
