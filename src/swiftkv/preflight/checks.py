"""Everything that is checked for a profile, in the order in which it is printed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from swiftkv.config import Config
from swiftkv.errors import UserError
from swiftkv.gpus import asked_for, cuda_of
from swiftkv.planning.estimate import written
from swiftkv.planning.jobs import plan_jobs
from swiftkv.planning.profile import Profile, read_config, read_profile
from swiftkv.preflight import machine, slurm
from swiftkv.preflight.hub import Hub, Silent, in_cache
from swiftkv.preflight.slurm import LATER, Request, slurm_requests
from swiftkv.pricing.work import Download, PlannedJob, Work, once
from swiftkv.score.fetch import data_set
from swiftkv.stages import stage_of

Planner = Callable[[], Sequence[PlannedJob]]
Result = TypeVar("Result")


class Report:
    """Runs checks and prints what each found.

    Attributes:
        failures: what those that failed so far say.

    Args:
        show: takes each line.
    """

    def __init__(self, show: Callable[[str], None] = print) -> None:
        self.show, self.failures = show, list[str]()

    def check(
        self,
        name: str,
        function: Callable[[], Result],
        describe: Callable[[Result], str] = str,
    ) -> Result | None:
        """Run one check and print its line.

        Args:
            name: what is looked at, the line's first word.
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
    """Check what a run of a profile needs, one printed line each.

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
    lock = report.check("lock file", lambda: machine.lock_file(root), lambda file: file.name)
    if lock:
        report.check("versions", lambda: machine.check_versions(lock))
    profile = report.check(
        "profile", lambda: read_profile(name, root, configfiles), lambda found: os.path.relpath(found.folder)
    )
    if profile is None:
        report.end()
    config = report.check(
        "configuration", lambda: read_config(root, profile), lambda found: f"{len(found.plain)} sections"
    )
    if config is None:
        report.end()
    jobs = report.check("plan", lambda: plan_jobs(profile, root, targets), lambda found: f"{len(found)} jobs to run")
    results = Path(config.pathvars.results)
    report.check("results", lambda: machine.check_writable(results))
    if jobs is None:
        show("      without a plan, nothing else can be checked")
        report.end()
    if profile.slurm:
        check_slurm(report, profile, jobs, lambda: plan_jobs(profile, root, targets, attempt=profile.attempts))
    else:
        check_machine(report, profile, config, jobs)
    report.check("benchmarks", lambda: check_tasks(config, jobs), lambda number: f"{number} to be scored")
    works = [Work(job, config, root) for job in jobs]
    check_disks(report, results, works, check_hub(report, works))
    report.end()


def check_slurm(report: Report, profile: Profile, jobs: Sequence[PlannedJob], last: Planner | None = None) -> None:
    """The controller, the queue, the account and every distinct request.

    Args:
        last: plans the jobs as their last attempt asks for them.
    """
    if asked_for(jobs):
        report.check("torch", lambda: cuda_of(profile.python), lambda cuda: f"built for CUDA {cuda}")
    if report.check("slurm", slurm.controller) is None:
        return
    report.check("queue", lambda: slurm.earlier_jobs(profile.directory))
    requests = report.check(
        "requests",
        lambda: _requests(profile, jobs, last),
        lambda found: f"{len(found)} kinds of job to submit",
    )
    if requests is None:
        return
    report.check("account", lambda: slurm.accounts(requests))
    verdict = slurm.verdict(requests)
    for sentence in verdict.refused:
        report.fail("request", sentence)
    for sentence in verdict.waiting:
        report.show(f"      request: {sentence}; jobs will wait for it")
    if not verdict.refused:
        report.check("sbatch", lambda: "SLURM takes every request, of all attempts")


def _requests(profile: Profile, jobs: Sequence[PlannedJob], last: Planner | None) -> list[Request]:
    """The distinct requests of the first attempt of all jobs, and those that only the last one makes."""
    requests = slurm_requests([(job.rule, job) for job in jobs if not job.local], profile.slurm)
    if last and profile.attempts > 1:
        known = {request.words for request in requests}
        again = [(f"{job.rule}{LATER}{profile.attempts}", job) for job in last() if not job.local]
        requests += [request for request in slurm_requests(again, profile.slurm) if request.words not in known]
    return requests


def check_machine(report: Report, profile: Profile, config: Config, jobs: Sequence[PlannedJob]) -> None:
    """Processors, memory and GPUs of a machine without scheduler."""
    report.check("cores", lambda: machine.check_cores(profile.cores, len(os.sched_getaffinity(0))))
    report.check("memory", lambda: machine.check_memory(jobs, profile.cores, profile.resources["mem_mb"]))
    check_gpus(report, profile, config, jobs)


def problems_at_start(profile: Profile, config: Config, jobs: Sequence[PlannedJob]) -> list[str]:
    """Why a run should not start; nothing where all is well, and then what runs at once on this machine is said."""
    report = Report(lambda line: None)
    if profile.slurm:
        check_slurm(report, profile, jobs)
        return report.failures
    room = report.check("memory", lambda: machine.check_memory(jobs, profile.cores, profile.resources["mem_mb"]))
    check_gpus(report, profile, config, jobs)
    if not report.failures:
        print(room, file=sys.stderr)
    return report.failures


def check_gpus(report: Report, profile: Profile, config: Config, jobs: Sequence[PlannedJob]) -> None:
    """The GPUs of a machine without scheduler, if jobs ask for any."""
    if not asked_for(jobs):
        return
    cuda = report.check("torch", lambda: cuda_of(profile.python), lambda cuda: f"built for CUDA {cuda}")
    found = report.check("nvidia-smi", machine.gpus, lambda gpus: f"{len(gpus)} GPUs")
    if not found:
        return
    report.check("gpus", lambda: machine.check_gpus(found, profile.resources.get("gpu", 0)))
    if cuda:
        report.check("driver", lambda: machine.check_driver(found, cuda))
    if any(_computes_in_fp8(config, job) for job in jobs if job.gpus):
        report.check("fp8", lambda: machine.check_fp8(found))


def check_tasks(config: Config, jobs: Sequence[PlannedJob]) -> int:
    """How many benchmarks are to be scored; lm-eval must have each one's task, metric and filter, and there its files.

    Raises:
        UserError: as `check_task`.
    """
    from swiftkv.score.tasks import check_task  # imports lm-eval, which takes seconds

    outputs = {job.wildcards.get("task", Path(path).stem) for job in jobs for path in job.outputs}
    tasks = [task for name, task in config["tasks"].items() if name in outputs]
    for task in tasks:
        check_task(task)
    return len(tasks)


def check_hub(report: Report, works: Sequence[Work]) -> int:
    """Every hub repository that the jobs load; what a silent hub leaves open is one failure.

    Returns:
        Bytes to be downloaded.
    """
    from huggingface_hub import HfApi, constants, get_token

    hub = Hub(HfApi(), in_cache, token=get_token() is not None, offline=constants.HF_HUB_OFFLINE)
    absent: list[str] = []

    def look(item: Download) -> str:
        # Of a task that the catalogue lacks, lm-eval's files name the data set.
        return hub.look(item if "/" in item.hub else replace(item, hub=data_set(item.hub)))

    for item in once(item for work in works for item in stage_of(work.job.rule).downloads(work)):
        if "://" in item.hub:
            continue
        name = f"hub {item.origin} {item.hub}"
        try:
            report.show(f"ok    {name}: {look(item)}")
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


def check_disks(report: Report, results: Path, works: Sequence[Work], downloads: int) -> None:
    """Room where results, downloads and scratch files go; what goes to one disk is added up.

    Args:
        downloads: bytes that come from the hub.
    """
    from huggingface_hub import constants

    scratch = max((work.job.resources.get("disk_mb", 0) for work in works), default=0) * 10**6
    kept = sum(sum(written(work).values()) for work in works)
    needs = {
        "results": (results, max(kept, scratch)),
        "hub cache": (Path(constants.HF_HUB_CACHE), downloads),
        "scratch": (Path(tempfile.gettempdir()), scratch),
    }
    disks: dict[int, list[str]] = {}
    for name, (folder, _) in needs.items():
        disks.setdefault(machine.disk(folder), []).append(name)
    for names in disks.values():
        folder, total = needs[names[0]][0], sum(needs[name][1] for name in names)
        report.check(
            f"disk of {', '.join(names)}", lambda folder=folder, total=total: machine.check_space(folder, total)
        )


def _computes_in_fp8(config: Config, job: PlannedJob) -> bool:
    model = config.models.get(job.wildcards.get("model", ""))
    served = job.rule == "measure" and job.wildcards.get("kv_cache") == "fp8"
    return served or bool(model and model.quantization == "fp8")
