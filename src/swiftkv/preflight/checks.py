"""Everything that is checked for a profile, in the order in which it is printed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from swiftkv.cost import parameter_count
from swiftkv.errors import UserError
from swiftkv.planning.jobs import LOCAL_RULES
from swiftkv.preflight import machine, slurm, versions
from swiftkv.preflight.hub import Hub, in_cache, sources_in_use
from swiftkv.preflight.profile import Profile, read_profile
from swiftkv.preflight.report import Report
from swiftkv.preflight.requests import LATER, PlannedJob, Request, planned_jobs, slurm_requests
from swiftkv.records import read_json


def check(name: str, project: str | Path, targets: Sequence[str] = (), show: Callable[[str], None] = print) -> None:
    """Check what a run of a profile needs, one printed line each.

    Args:
        name: of the profile, or its folder.
        project: the folder of the Snakefile.
        targets: files that are to be made; all if empty.

    Raises:
        UserError: a check failed; its line has been printed.
    """
    report = Report(show)
    lock = report.check("lock file", lambda: versions.lock_file(project), lambda file: file.name)
    if lock:
        report.check("versions", lambda: versions.check_versions(lock))
    profile = report.check("profile", lambda: read_profile(name, project), lambda found: os.path.relpath(found.folder))
    if profile is None:
        report.end()
    arguments = ["--snakefile", f"{project}/Snakefile", "--profile", str(profile.folder), "--", *targets]
    jobs = report.check("plan", lambda: planned_jobs(arguments), lambda found: f"{len(found)} jobs to run")
    report.check("results", lambda: machine.check_writable(profile.results))
    if jobs is None:
        show("      without a plan, nothing else can be checked")
        report.end()
    if profile.slurm:
        check_slurm(report, profile, jobs, lambda: planned_jobs(arguments, profile.attempts))
    else:
        check_machine(report, profile, jobs)
    downloads = check_hub(report, profile, jobs)
    check_disks(report, profile, jobs, downloads, project)
    report.end()


def check_slurm(report: Report, profile: Profile, jobs: list[PlannedJob], last: Callable[[], list[PlannedJob]]) -> None:
    """The controller, the queue, the account and every distinct request.

    Args:
        last: plans the jobs as their last attempt asks for them.
    """
    if report.check("slurm", slurm.controller) is None:
        return
    given = {name: profile.settings.get(f"slurm-{name}") for name in ("requeue", "no-requeue", "qos", "reservation")}
    settings = SimpleNamespace(**{name.replace("-", "_"): value for name, value in given.items()})
    report.check("queue", lambda: slurm.earlier_jobs(profile.settings.get("directory", os.curdir)))
    requests = report.check(
        "requests",
        lambda: _requests(profile, jobs, last, settings),
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


def _requests(
    profile: Profile, jobs: list[PlannedJob], last: Callable[[], list[PlannedJob]], settings: Any
) -> list[Request]:
    """The distinct requests of the first attempt of all jobs, and those that only the last one makes."""
    found = slurm_requests([(job.rule, job) for job in jobs if job.rule not in LOCAL_RULES], settings)
    if profile.attempts > 1:
        known = {request.words for request in found}
        again = [(f"{job.rule}{LATER}{profile.attempts}", job) for job in last() if job.rule not in LOCAL_RULES]
        found += [request for request in slurm_requests(again, settings) if request.words not in known]
    return found


def check_machine(report: Report, profile: Profile, jobs: list[PlannedJob]) -> None:
    """Processors, memory and GPUs of a machine without scheduler."""
    available = len(os.sched_getaffinity(0))
    wanted = profile.settings.get("cores", "all")
    report.check("cores", lambda: machine.check_cores(wanted, available))
    cores = available if wanted == "all" else int(wanted)
    report.check("memory", lambda: machine.check_memory(jobs, cores, profile.limit("mem_mb"), machine.memory_mb()))
    on_gpus = [job for job in jobs if job.resources.get("gpu")]
    if not on_gpus:
        return
    found = report.check("nvidia-smi", machine.gpus, lambda gpus: f"{len(gpus)} GPUs")
    if not found:
        return
    from torch.version import cuda

    report.check("gpus", lambda: machine.check_gpus(found, profile.limit("gpu") or 0))
    report.check("driver", lambda: machine.check_driver(found, cuda))
    if any(_computes_in_fp8(profile, job) for job in on_gpus):
        report.check("fp8", lambda: machine.check_fp8(found))


def check_hub(report: Report, profile: Profile, jobs: list[PlannedJob]) -> int:
    """Every hub repository that the jobs load.

    Returns:
        Bytes to be downloaded.
    """
    from huggingface_hub import HfApi, constants, get_token

    hub = Hub(HfApi(), in_cache, token=get_token() is not None, offline=constants.HF_HUB_OFFLINE)
    for source in sources_in_use(profile.config, jobs):
        report.check(f"hub {source.kind} {source.identifier}", lambda source=source: hub.look(source))
    return hub.missing


def check_disks(report: Report, profile: Profile, jobs: list[PlannedJob], downloads: int, project: str | Path) -> None:
    """Room where results, downloads and scratch files go; what goes to one disk is added up.

    Args:
        downloads: bytes that come from the hub.
    """
    from huggingface_hub import constants

    scratch = max((job.resources.get("disk_mb", 0) for job in jobs), default=0) * 10**6
    needs = {
        "results": (profile.results, max(checkpoint_bytes(profile, jobs, project), scratch)),
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


def checkpoint_bytes(profile: Profile, jobs: list[PlannedJob], project: str | Path) -> int:
    """Bytes of the checkpoints that planned trainings will save, of the models whose dimensions the configuration names.

    What else is written (states to resume from, packed rows, teacher states) comes on top.
    """
    total = 0
    for job in jobs:
        if job.rule != "distill":
            continue
        model = profile.config["models"][job.wildcards["model"]]
        if "architecture" in model:
            try:
                parameters = parameter_count(read_json(Path(project) / model["architecture"])["config"])
            except UserError:  # a family without a count
                continue
            total += parameters * (1 if model.get("quantization") == "fp8" else 2)
    return total


def _computes_in_fp8(profile: Profile, job: PlannedJob) -> bool:
    model = profile.config["models"].get(job.wildcards.get("model"), {})
    served = job.rule == "measure" and job.wildcards.get("kv_cache") == "fp8"
    return served or model.get("quantization") == "fp8"
