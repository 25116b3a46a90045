"""`make plan`: jobs, GPU-hours, wall time, disk, downloads and licenses of a run before it starts, rule by rule."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config import Config
from pipeline.run.estimate import Estimate, Work, estimates, speed_of
from pipeline.run.jobs import PlannedJob, Profile, parents, plan_jobs, read_config, read_profile
from pipeline.run.sizes import Download, downloads, once
from swiftkv.cost import GIGA

HOUR = 3600
EXCLUSIVE = "--exclusive"  # in a job's slurm_extra: nothing else runs on its nodes


@dataclass(frozen=True)
class Plan:
    """A planned run.

    Attributes:
        profile: the profile that it runs with.
        config: its configuration.
        jobs: what there is to do.
        estimates: how long each takes.
        written: bytes that each leaves on the disk, downloads apart.
        downloads: each once.
        wall_seconds: how long the run takes at least.
    """

    profile: Profile
    config: Config
    jobs: list[PlannedJob]
    estimates: list[Estimate]
    written: list[float]
    downloads: list[Download]
    wall_seconds: float

    def gpus(self, job: PlannedJob) -> int:
        """GPUs that a job keeps from others: those that it asks for, or all of its nodes where it shares them with none."""
        if job.gpus and EXCLUSIVE in str(job.resources.get("slurm_extra") or "").split():
            return max(job.gpus, int(self.config.planning.gpu.node.value) * (job.resources.get("nodes") or 1))
        return job.gpus

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all jobs."""
        spent = zip(self.jobs, self.estimates, strict=True)
        return sum(self.gpus(job) * estimate.seconds for job, estimate in spent) / HOUR

    @property
    def downloaded(self) -> int:
        """Bytes of all downloads with a known size."""
        return sum(item.bytes or 0 for item in self.downloads)

    @property
    def disk(self) -> float:
        """Bytes that stay on the disk, downloads included."""
        return sum(self.written) + self.downloaded


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
    # Finished jobs tell how long others take; a dry run that names them is worth its seconds only if there are any.
    finished: list[PlannedJob] = []
    if not everything and any(Path(config.pathvars.benchmarks).rglob("*.tsv")):
        left = {job.outputs for job in jobs}
        finished = [job for job in plan_jobs(found, root, everything=True) if job.outputs not in left]
    return estimate_plan(root, found, config, jobs, finished, speed_of(found, config, jobs))


def estimate_plan(
    root: Path,
    profile: Profile,
    config: Config,
    jobs: list[PlannedJob],
    finished: Sequence[PlannedJob] = (),
    speed: float = 1.0,
) -> Plan:
    """Estimate planned jobs.

    Args:
        root: folder of the project.
        profile, config, jobs: of the run.
        finished: other jobs of the same configuration.
        speed: of this processor, as `pipeline.run.estimate.processor_speed` measures it.
    """
    works = [Work(job, config, root, speed) for job in jobs]
    others = [Work(job, config, root, speed) for job in finished]
    taken = estimates(works, others, in_turn=profile.cores is not None)
    return Plan(
        profile,
        config,
        jobs,
        taken,
        [work.written() for work in works],
        once(item for job in jobs for item in downloads(job, config, root)),
        wall_seconds(jobs, [estimate.seconds for estimate in taken], parents(jobs), profile),
    )


def wall_seconds(
    jobs: Sequence[PlannedJob],
    seconds: Sequence[float] | Mapping[int, float],
    graph: Mapping[int, Sequence[int]],
    profile: Profile,
) -> float:
    """Return the least that a run takes: its longest chain of jobs, or the work that shares what there is least of.

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


def report(plan: Plan) -> str:
    """Print a plan as tables; the summary last, where it stays on the screen."""
    if not plan.jobs:
        return "Nothing is left to do."
    return "\n\n".join([_assumptions(plan), _by_rule(plan), _downloads(plan), _summary(plan)])


def _by_rule(plan: Plan) -> str:
    rules: dict[str, list[int]] = {}
    for number, job in enumerate(plan.jobs):
        rules.setdefault(job.rule, []).append(number)
    rows = []
    for rule, numbers in rules.items():
        jobs, taken = [plan.jobs[number] for number in numbers], [plan.estimates[number] for number in numbers]
        gpus = sorted({plan.gpus(job) for job in jobs})
        hours = sum(plan.gpus(job) * each.seconds for job, each in zip(jobs, taken, strict=True)) / HOUR
        open_end = " + ?" if any(each.why for each in taken) else ""
        rows.append(
            {
                "rule": rule,
                "jobs": len(jobs),
                "runs": "here" if jobs[0].local or plan.profile.cores is not None else "cluster",
                "GPUs a job": "-" if gpus == [0] else " to ".join(map(str, dict.fromkeys([gpus[0], gpus[-1]]))),
                "GPU-hours": _hours(hours) + open_end,
                "longest job": duration(max(each.seconds for each in taken)) + open_end,
                "all, one by one": duration(sum(each.seconds for each in taken)) + open_end,
                "disk, GB": gigabytes(sum(plan.written[number] for number in numbers)),
                "measured": sum(each.measured for each in taken) or "-",
            }
        )
    return "By rule; measured: jobs that have run before, or others of the same rule and model\n" + _printed(rows)


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
        if "/" in item.hub
    ]
    text = "Downloads, once each" + ("\n" + _printed(rows) if rows else "")
    if unnamed := [item.hub for item in plan.downloads if "/" not in item.hub]:
        text += f"\nand the questions of {', '.join(unnamed)} from where lm-eval has them"
    gated = any(item.gated for item in plan.downloads)
    return text + ("\nGated sources also need HF_TOKEN, or `hf auth login`." if gated else "")


def _summary(plan: Plan) -> str:
    profile, cluster = plan.profile, plan.profile.cores is None
    if cluster:
        here = sum(job.local for job in plan.jobs)
        jobs = f"{_count(len(plan.jobs) - here, 'cluster job')} and {_count(here, 'small one')} beside Snakemake"
        where = f"{'any number of' if profile.jobs == sys.maxsize else profile.jobs} jobs in the queue at once"
    else:
        jobs, where = _count(len(plan.jobs), "job"), _count(profile.cores or 0, "core")
    limits = {name: f"{amount} {name}" for name, amount in profile.resources.items()}
    if "mem_mb" in limits:
        limits["mem_mb"] = f"{profile.resources['mem_mb'] / 1000:.1f} GB of memory"
    unknown = Counter(estimate.why for estimate in plan.estimates if estimate.why)
    least = "at least " if unknown else ""
    largest = max((plan.gpus(job) for job in plan.jobs), default=0)
    lines = [
        f"Profile {profile.folder.name}: {jobs}",
        f"  GPU-hours   {least}{_hours(plan.gpu_hours)}"
        + (f", up to {_count(largest, 'GPU')} a job" if largest else ""),
        f"  wall time   at least {duration(plan.wall_seconds)}, with {', '.join([where, *limits.values()])}",
        f"  disk        {least}{gigabytes(plan.disk)} GB, {gigabytes(plan.downloaded)} GB of it downloads",
    ]
    for job, estimate in zip(plan.jobs, plan.estimates, strict=True):
        if cluster and estimate.seconds > 60 * job.resources.get("runtime", sys.maxsize):
            name, limit = " ".join([job.rule, *job.wildcards.values()]), duration(60 * job.resources["runtime"])
            lines.append(
                f"  too long    {name} takes {duration(estimate.seconds)}; its first attempt ends after {limit}"
            )
    lines += [f"  not counted {_count(count, 'job')}, as {why}" for why, count in unknown.items()]
    return "\n".join(lines)


def _assumptions(plan: Plan) -> str:
    kinds = {"host"} | {"gpu" if job.gpus else "cpu" for job in plan.jobs if "gpu" in job.resources}
    mixes = {plan.config.recipes[job.wildcards["recipe"]].data for job in plan.jobs if "recipe" in job.wildcards}
    mixes |= {job.wildcards["data"] for job in plan.jobs if "data" in job.wildcards}
    planning = plan.config.planning
    sections = {kind: getattr(planning, kind) for kind in ("host", "gpu", "cpu") if kind in kinds}
    sections |= {f"data.{mix}": entry for mix, entry in planning.data.items() if mix in mixes}
    rows = [
        {
            "assumed": f"{section}.{name}",
            "value": f"{assumed.value:g}",
            "is": assumed.sure,
            "namely": assumed.why,
        }
        for section, entries in sections.items()
        for name, assumed in entries
    ]
    return "Assumptions (planning in config.yaml)\n" + _printed(rows)


def _printed(rows: Sequence[dict[str, Any]]) -> str:
    table = pd.DataFrame(rows)
    numbers = {"jobs", "GPUs a job", "GPU-hours", "disk, GB", "size, GB", "measured", "value"}
    aligned = ["right" if name in numbers else "left" for name in table]
    return table.to_markdown(index=False, tablefmt="simple", disable_numparse=True, colalign=aligned)


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:,.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def gigabytes(size: float) -> str:
    """Return bytes as gigabytes."""
    return f"{size / GIGA:,.0f}" if size >= 10 * GIGA else f"{size / GIGA:.1f}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
