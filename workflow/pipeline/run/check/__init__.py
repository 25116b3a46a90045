"""`make check PROFILE=...`: what would stop a run hours from now, printed before it starts, one line a check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pipeline.config import Config
from pipeline.gpus import asked_for, cuda_of
from pipeline.run.check import slurm
from pipeline.run.check.hub import Hub, Silent
from pipeline.run.estimate import Work
from pipeline.run.jobs import PlannedJob, Profile, plan_jobs, read_config, read_profile
from pipeline.run.sizes import Download, downloads, once
from pipeline.score.fetch import data_set
from swiftkv.cost import GIGA
from swiftkv.errors import UserError

Result = TypeVar("Result")


class Report:
    """Runs checks and prints a line for each.

    Attributes:
        failures: the sentences of those that failed so far.

    Args:
        show: takes each line.
    """

    def __init__(self, show: Callable[[str], None] = print) -> None:
        self.show, self.failures = show, list[str]()

    def check(
        self, name: str, function: Callable[[], Result], describe: Callable[[Result], str] = str
    ) -> Result | None:
        """Run one check and print its line.

        Args:
            name: the line's first word.
            function: raises a `UserError` where something is wrong.
            describe: the line's text where nothing is, from what `function` returned.

        Returns:
            What `function` returned; None where it failed.
        """
        try:
            found = function()
        except UserError as error:
            self.fail(name, str(error))
            return None
        self.show(f"ok    {name}: {describe(found)}")
        return found

    def fail(self, name: str, sentence: str) -> None:
        """Print the line of a check that failed."""
        self.failures.append(sentence)
        self.show(f"FAIL  {name}: {sentence}")

    def end(self) -> None:
        """Raise a `UserError` that counts the failures, if there are any."""
        if self.failures:
            raise UserError(f"{len(self.failures)} of the checks failed; mend what they name and check again")


def check(
    root: Path,
    name: str | Path,
    targets: Sequence[str] = (),
    configfiles: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> None:
    """Check what a run of a profile needs.

    Args:
        root: folder of the project.
        name: the profile's name, or its folder.
        targets: files that are to be made; all if empty.
        configfiles: added to the profile's own.
        show: takes each line.

    Raises:
        UserError: a check failed; its line has been printed.
    """
    report = Report(show)
    profile = report.check(
        "profile", lambda: read_profile(name, root, configfiles), lambda found: os.path.relpath(found.folder)
    )
    if profile is None:
        report.end()
    config = report.check("configuration", lambda: read_config(root, profile), lambda found: "valid")
    if config is None:
        report.end()
    jobs = report.check("plan", lambda: plan_jobs(profile, root, targets), lambda found: f"{len(found)} jobs to run")
    if jobs is None:
        show("      without a plan, nothing else can be checked")
        report.end()
    again: list[PlannedJob] = []  # later attempts may ask for more
    if profile.slurm and profile.attempts > 1:
        again = plan_jobs(profile, root, targets, attempt=profile.attempts)
    check_environment(report, profile, [*jobs, *again], strict=True)
    report.check("benchmarks", lambda: check_tasks(config, jobs), lambda number: f"{number} to be scored")
    missing = check_hub(report, [item for job in jobs for item in downloads(job, config, root)])
    check_disks(report, Path(config.pathvars.results), [Work(job, config, root) for job in jobs], missing)
    report.end()


def problems_at_start(profile: Profile, jobs: Sequence[PlannedJob]) -> list[str]:
    """Return why a run cannot start; where it can, print how many jobs run at once on this machine."""
    report = Report(lambda line: None)
    room = check_environment(report, profile, jobs)
    if room and not report.failures:
        print(room, file=sys.stderr)
    return report.failures


def check_environment(
    report: Report, profile: Profile, jobs: Sequence[PlannedJob], *, strict: bool = False
) -> str | None:
    """Check that the environment fits the jobs: torch, and SLURM or the memory and GPUs of this machine.

    Args:
        strict: whether a request that no node of SLURM fits at present is a failure; they may all be drained.
    """
    if asked_for(jobs):
        report.check("torch", lambda: cuda_of(profile.python), lambda cuda: f"built for CUDA {cuda}")
    if profile.slurm:
        if report.check("slurm", slurm.controller):
            report.check("queue", lambda: slurm.earlier_jobs(profile.directory))
            check_requests(report, profile, jobs, strict=strict)
        return None
    if asked_for(jobs):
        report.check("gpus", lambda: check_gpus(profile.resources.get("gpu", 0)))
    return report.check("memory", lambda: check_memory(jobs, profile.cores or 1, profile.resources["mem_mb"]))


def check_requests(report: Report, profile: Profile, jobs: Sequence[PlannedJob], *, strict: bool) -> None:
    """Check that SLURM takes what the jobs ask for; `strict` as in `check_environment`."""
    requests = report.check(
        "requests",
        lambda: slurm.slurm_requests([(job.rule, job) for job in jobs if not job.local], profile.slurm),
        lambda found: f"{len(found)} kinds of job to submit",
    )
    verdict = slurm.verdict(requests or [])
    failed = [*verdict.refused, *(verdict.waiting if strict else ())]
    for sentence in failed:
        report.fail("request", sentence)
    if not strict and verdict.waiting:
        print("\n".join(verdict.waiting), file=sys.stderr)
    if requests and not failed:
        report.show("ok    sbatch: SLURM takes every request")


def check_gpus(wanted: int) -> str:
    """Check that this machine has as many GPUs as the profile shares out.

    Raises:
        UserError: there are fewer, or no driver that says how many.
    """
    try:
        run = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise UserError(
            "nvidia-smi is not here or does not answer: install NVIDIA's driver, or use another profile"
        ) from None
    found = sum(line.startswith("GPU ") for line in run.stdout.splitlines())
    if found < wanted:
        raise UserError(
            f"the profile shares out {wanted} GPUs and this machine has {found}: correct gpu under resources in the profile"
        )
    return f"{found} here, {wanted} shared out"


def check_memory(jobs: Iterable[PlannedJob], cores: int, memory: int) -> str:
    """Check that every job fits into the memory that all share; Snakemake lets the others wait.

    Args:
        jobs: all that are planned.
        cores: that Snakemake may use.
        memory: MB for all jobs that run at once.

    Returns:
        What there is, and how many of the largest jobs it lets run at once, if fewer than the cores do.

    Raises:
        UserError: a job takes more.
    """
    largest = max(jobs, key=lambda job: job.resources.get("mem_mb", 0), default=PlannedJob("none"))
    needed = largest.resources.get("mem_mb", 0)
    if needed > memory:
        raise UserError(
            f"a job of rule {largest.rule} takes {needed} MB of memory and there are {memory}: end other programs, or state "
            f"what may be used with --resources mem_mb={needed}"
        )
    room = f"{cores} cores and {memory / 1000:.1f} GB of memory"
    by_cores, by_memory = cores // min(largest.threads, cores), memory // max(needed, 1)
    if by_memory >= by_cores:
        return room
    return f"{room}, so at most {by_memory} of rule {largest.rule} at once ({needed / 1000:.1f} GB each)"


def check_tasks(config: Config, jobs: Sequence[PlannedJob]) -> int:
    """Check that lm-eval has the task, metric and filter of each benchmark, and return how many there are.

    Raises:
        UserError: as `check_task`.
    """
    from pipeline.score.tasks import check_task  # imports lm-eval, which takes seconds

    outputs = {job.wildcards.get("task", Path(path).stem) for job in jobs for path in job.outputs}
    tasks = [task.model_dump() for name, task in config.tasks.items() if name in outputs]
    for task in tasks:
        check_task(task)
    return len(tasks)


def check_hub(report: Report, found: Iterable[Download]) -> int:
    """Check every hub repository that jobs load; all that a silent hub leaves open is one failure.

    Returns:
        Bytes to be downloaded.
    """
    hub, absent = Hub.here(), list[str]()
    for item in once(found):
        if "://" in item.hub:
            continue
        name = f"hub {item.origin} {item.hub}"
        try:
            # Of a task that the catalogue lacks, lm-eval's files name the data set.
            report.show(f"ok    {name}: {hub.look(item if '/' in item.hub else replace(item, hub=data_set(item.hub)))}")
        except Silent:
            absent.append(item.hub)
        except UserError as error:
            report.fail(name, str(error))
    if absent:
        report.fail(
            "hub",
            f"{hub.silence}, and these are not in the local cache: {', '.join(absent)}; connect to the hub, or download them "
            "elsewhere and name them as `local` sources",
        )
    return hub.missing


def check_disks(report: Report, results: Path, works: Sequence[Work], missing: int) -> None:
    """Check for room where results, downloads and scratch files go; what goes to one disk is added up.

    Args:
        missing: bytes that come from the hub.
    """
    from huggingface_hub import constants

    scratch = max((work.job.resources.get("disk_mb", 0) for work in works), default=0) * 10**6
    needs = {
        "results": (results, max(sum(work.written() for work in works), scratch)),
        "hub cache": (Path(constants.HF_HUB_CACHE), missing),
        "scratch": (Path(tempfile.gettempdir()), scratch),
    }
    disks: dict[int, list[str]] = {}
    for name, (folder, _) in needs.items():
        disks.setdefault(_existing(folder).stat().st_dev, []).append(name)
    for names in disks.values():
        folder, total = needs[names[0]][0], sum(needs[name][1] for name in names)
        report.check(f"disk of {', '.join(names)}", lambda folder=folder, total=total: check_space(folder, total))


def check_space(folder: Path, needed: float) -> str:
    """Check that a folder, which need not exist yet, can be written to and that its disk has room.

    Raises:
        UserError: it cannot, or has not.
    """
    place = _existing(folder)
    if not os.access(place, os.W_OK):
        raise UserError(f"{folder} cannot be written to: correct its rights or choose another")
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"{folder} has {free / GIGA:.1f} GB free and at least {needed / GIGA:.1f} GB will be written there: free some "
            "space, or put it on another disk"
        )
    return f"{free / GIGA:.0f} GB free in {folder}, at least {needed / GIGA:.1f} GB to be written"


def _existing(folder: Path) -> Path:
    """The folder or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
