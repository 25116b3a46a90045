"""`make check PROFILE=...`: find faults that would stop a run hours from now, and print a line a check."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.artifacts.metrics import INPUTS
from pipeline.config import Config
from pipeline.gpus import asked_for, cuda_of
from pipeline.quality.fetch import data_set
from pipeline.records import libraries
from pipeline.run import slurm
from pipeline.run.estimate import estimates
from pipeline.run.jobs import PlannedJob, Profile, plan_jobs, read_config
from pipeline.run.plan import count
from pipeline.run.sizes import Download, downloads, once
from pipeline.sources import MODEL_FILES, check_checkpoint, check_description
from pipeline.sources.hub import HUB_SECONDS, SECOND_COPIES, refusal
from pipeline.text import some
from swiftkv.cost import GIGA
from swiftkv.errors import UserError
from swiftkv.io import check_space, read_json

DESCRIPTION = ["config.json", "tokenizer_config.json", "chat_template.jinja"]  # of a model, a few KB


class Report:
    """Prints a line for each check.

    Attributes:
        failures: the sentences of failed checks.

    Args:
        show: called with each line.
    """

    def __init__(self, show: Callable[[str], None] = print) -> None:
        self.show, self.failures = show, list[str]()

    def check(self, name: str, function: Callable[..., str], *arguments: Any) -> bool:
        """Run a check, which returns the text of its line or raises a `UserError`; return True if it passed."""
        try:
            text = function(*arguments)
        except UserError as error:
            self.fail(name, str(error))
            return False
        self.show(f"ok    {name}: {text}")
        return True

    def fail(self, name: str, sentence: str) -> None:
        """Print the line of a check that failed."""
        self.failures.append(sentence)
        self.show(f"FAIL  {name}: {sentence}")


def check(profile: Profile, targets: Sequence[str] = ()) -> None:
    """Check the requirements of a run of a profile, and print a line for each check.

    Args:
        profile: the profile.
        targets: files to be made; all if empty.

    Raises:
        UserError: there is no plan, or a check failed.
    """
    report, config, jobs = Report(), read_config(profile), plan_jobs(profile, targets)
    report.show(f"ok    plan: {len(jobs)} jobs of {os.path.relpath(profile.folder)}")
    if other := other_libraries(Path(config.pathvars.results)):
        report.show(
            f"note  records: {other}; new ones may differ for that alone: delete these, or keep the environment"
        )
    # Later attempts may ask for more.
    again = plan_jobs(profile, targets, attempt=profile.attempts) if profile.slurm else []
    for sentence in check_environment(report, profile, [*jobs, *again]):
        report.fail("request", sentence)
    report.check("benchmarks", lambda: f"{check_tasks(config, jobs)} to be scored")
    report.check("checkpoints", check_bases, jobs)
    missing = check_hub(report, (item for job in jobs for item in downloads(job, config)))
    written = estimates(profile, config, jobs).written.sum()
    report.check("disk", check_disk, Path(config.pathvars.results), written, missing)
    if report.failures:
        raise UserError(f"{len(report.failures)} of the checks failed; mend what they name and check again")


def other_libraries(results: Path) -> str:
    """Count the measurements made with other versions of libraries than are installed; empty if there are none."""
    here, other = libraries(), Counter[str]()
    for file in (file for folder in set(INPUTS.values()) for file in (results / folder).rglob("*.json")):
        made_with = read_json(file).get("provenance", {}).get("libraries", {}).items()
        other.update(f"{name} {version}" for name, version in made_with if here.get(name, version) != version)
    return ", ".join(f"{number} made with {library}" for library, number in sorted(other.items()))


def problems_at_start(profile: Profile, jobs: Sequence[PlannedJob], unrecorded: Sequence[str] = ()) -> list[str]:
    """Return the faults that stop a run from starting, and print notes for its user.

    Args:
        profile: its settings.
        jobs: that are to run.
        unrecorded: finished files whose settings Snakemake does not know, so that it never makes them again.
    """
    report = Report(lambda line: None)
    notes = check_environment(report, profile, jobs)
    if profile.cores and not report.failures:
        notes.append(check_memory(jobs, profile.cores, profile.resources["mem_mb"]))
    if unrecorded:
        notes.append(
            f"note: {count(len(unrecorded), 'result')} finished after Snakemake was stopped, so it does not know the settings; "
            f"if you changed the configuration since then, delete {some(unrecorded)}"
        )
    for note in notes:
        print(note, file=sys.stderr)
    return report.failures


def check_environment(report: Report, profile: Profile, jobs: Sequence[PlannedJob]) -> list[str]:
    """Check that the environment fits the jobs: torch, and SLURM or the memory and GPUs of this machine.

    Returns:
        A sentence for each request that no node of SLURM fits at present; they may all be drained.
    """
    if asked_for(jobs):
        report.check("torch", lambda: f"built for CUDA {cuda_of(profile.python)}")
    if not profile.slurm:
        if asked_for(jobs):
            report.check("gpus", check_gpus, profile.resources.get("gpu", 0))
        report.check("memory", check_memory, jobs, profile.cores or 1, profile.resources["mem_mb"])
        return []
    if not report.check("slurm", slurm.controller):
        report.show("note  request: not checked, as SLURM does not answer")
        return []
    report.check("queue", slurm.earlier_jobs, profile.directory)
    submitted = [job for job in jobs if not job.local]
    try:
        refused, waiting = slurm.verdict(submitted, profile.slurm)
        if partitions := slurm.cancelling(submitted, profile.slurm):
            report.show(
                f"note  preemption: {', '.join(partitions)} cancels jobs that it preempts (PreemptMode=CANCEL); they are "
                "put back into the queue as long as Snakemake runs"
            )
    except UserError as error:
        refused, waiting = [str(error)], []
    for sentence in refused:
        report.fail("request", sentence)
    if not refused and not waiting:
        report.show("ok    request: SLURM takes every job")
    return waiting


def check_gpus(wanted: int) -> str:
    """Check that this machine has as many GPUs as the profile shares out.

    Raises:
        UserError: there are fewer, or no driver that says how many.
    """
    try:
        run = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, encoding="utf-8", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise UserError(
            "nvidia-smi is not here or does not answer: install NVIDIA's driver, or use another profile"
        ) from None
    gpus = sum(line.startswith("GPU ") for line in run.stdout.splitlines())
    if gpus < wanted:
        raise UserError(
            f"the profile shares out {wanted} GPUs and this machine has {gpus}: correct gpu under resources in the profile"
        )
    return f"{gpus} here, {wanted} shared out"


def check_memory(jobs: Iterable[PlannedJob], cores: int, memory: int) -> str:
    """Check that every job fits into the memory that all share; Snakemake lets the others wait.

    Args:
        jobs: all planned jobs.
        cores: cores that Snakemake may use.
        memory: MB for all jobs that run at once.

    Returns:
        Cores and memory, and how many of the largest jobs run at once, if memory lets fewer than the cores do.

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
    at_once = memory // max(needed, 1)
    if at_once >= cores // min(largest.threads, cores):
        return room
    return f"{room}, so at most {at_once} of rule {largest.rule} at once ({needed / 1000:.1f} GB each)"


def check_tasks(config: Config, jobs: Sequence[PlannedJob]) -> int:
    """Check that lm-eval has the task, metric and filter of each benchmark to be scored; return their number.

    Raises:
        UserError: as `check_task`.
    """
    from pipeline.quality.tasks import check_task  # imports lm-eval, which takes seconds

    outputs = {job.wildcards.get("task", Path(path).stem) for job in jobs for path in job.outputs}
    tasks = [task.model_dump() for name, task in config.tasks.items() if name in outputs]
    for task in tasks:
        check_task(task)
    return len(tasks)


def check_bases(jobs: Sequence[PlannedJob]) -> str:
    """Check the base models of the checkpoints that jobs read and no job writes; return their number; raises as `check_base`."""
    from swiftkv.models.sharing import check_base  # imports torch

    files = {file for job in jobs for file in job.inputs} - {file for job in jobs for file in job.outputs}
    finished = sorted(Path(file).parent for file in files if Path(file).parts[-4:-3] == ("checkpoints",))
    for folder in finished:
        check_base(folder)
    return f"{count(len(finished), 'finished one')}, base models unchanged"


def check_disk(results: Path, written: float, missing: float) -> str:
    """Check that results can be written, and that their disk and that of the hub cache have room.

    Args:
        results: folder of the results, which need not exist yet.
        written: bytes that jobs leave in the results.
        missing: bytes to be downloaded from the hub.

    Raises:
        UserError: results cannot be written, or there is not as much room.
    """
    from huggingface_hub import constants

    def existing(folder: Path) -> Path:
        return next(path for path in (folder, *folder.parents) if path.exists())

    place, cache = existing(results.absolute()), existing(Path(constants.HF_HUB_CACHE).absolute())
    if not os.access(place, os.W_OK):
        raise UserError(f"{results} cannot be written to: correct its rights or choose another")
    together = place.stat().st_dev == cache.stat().st_dev
    for folder, needed in ((place, written + missing * together), (cache, missing)):
        check_space(folder, needed)
    return f"room for {written / GIGA:.1f} GB of results in {results} and {missing / GIGA:.1f} GB of downloads"


def check_hub(report: Report, wanted: Iterable[Download]) -> int:
    """Check every hub repository that jobs load; if the hub does not answer, look in the local cache alone.

    All repositories that a silent hub leaves open are one failure.

    Returns:
        Bytes to be downloaded, as the hub states them.
    """
    from huggingface_hub import constants

    silence, missing, absent = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "", 0, list[str]()
    for item in once(wanted):
        if "://" in item.hub:
            continue
        name, size, problem = f"hub {item.origin} {item.hub}", None, ""
        try:
            # If the catalogue lacks a task, lm-eval's files name its data set.
            item = item if "/" in item.hub else replace(item, hub=data_set(item.hub))
            size = None if silence else _ask(item)
        except UserError as error:
            problem = str(error)
        except Exception as error:  # a network fails in many ways
            problem = refusal(item.hub, item.revision, error)
            silence = silence if problem else f"the hub cannot be reached ({type(error).__name__})"
        if not problem and in_cache(item):
            text = f"in the local cache ({silence})" if silence else "accessible, and in the local cache"
        elif size is not None:
            text, missing = f"accessible, {size / GIGA:.1f} GB to be downloaded", missing + size
        elif item.optional:
            why = problem or f"{silence}, and it is not in the local cache"
            text = f"optional; its results will say that it is unavailable ({why})"
        else:
            if problem:
                report.fail(name, problem)
            else:
                absent.append(item.hub)
            continue
        report.show(f"ok    {name}: {text}")
    if absent:
        report.fail(
            "hub",
            f"{silence}, and these are not in the local cache: {', '.join(absent)}; connect to the hub, or download them "
            "elsewhere and name them as `local` sources",
        )
    return missing


def _ask(item: Download) -> int:
    """Return the size of a repository in bytes; refuse a model by its description, before its weights are downloaded."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    api = HfApi()
    settings = {"revision": item.revision, "timeout": HUB_SECONDS, "files_metadata": True}
    info = api.repo_info(item.hub, repo_type=item.origin, **settings)
    if getattr(info, "gated", None):  # everybody may read the description of a gated one
        api.auth_check(item.hub, repo_type=item.origin)
    if item.layers is not None or item.template:
        # Beside the hub cache, to which a part of a model would look like all of it.
        with tempfile.TemporaryDirectory() as folder:
            api.snapshot_download(item.hub, revision=item.revision, allow_patterns=DESCRIPTION, local_dir=folder)
            check_description(Path(folder), item.hub, item.layers, template=item.template)
    files = filter_repo_objects(
        info.siblings or [],
        allow_patterns=item.files,
        ignore_patterns=SECOND_COPIES if item.origin == "model" else None,
        key=lambda file: file.rfilename,
    )
    return sum(file.size or 0 for file in files)


def in_cache(item: Download) -> bool:
    """Return True if a repository is complete in the local hub cache."""
    from huggingface_hub import snapshot_download

    settings = {"revision": item.revision, "allow_patterns": item.files, "local_files_only": True}
    try:
        folder = snapshot_download(item.hub, repo_type=item.origin, **settings)
        if item.origin == "model" and item.files == tuple(MODEL_FILES):
            check_checkpoint(Path(folder))
    except (OSError, ValueError, UserError):  # not there, only in part, or damaged
        return False
    return True
