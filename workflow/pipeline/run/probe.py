"""`make probe PROFILE=...`: run one short job as large as the largest of a run, which checks the nodes that it gets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.run import slurm
from pipeline.run.jobs import PlannedJob, Profile, plan_jobs, read_config
from pipeline.run.plan import count
from pipeline.run.probe_rank import EXCHANGE
from swiftkv.errors import UserError, one_line
from swiftkv.io import text_of

MINUTES = 5  # SLURM's limit; the job's own are 3 minutes in all
# Snakemake derives these, or they are for this machine alone.
DERIVED = ("mem", "mem_mib", "disk", "disk_mib", "tmpdir", "gpu_turn")


def probe(profile: Profile, targets: Sequence[str] = ()) -> None:
    """Run the job and print its lines.

    Args:
        profile: the profile of the run.
        targets: files to be made by the run; all if empty.

    Raises:
        UserError: there is no plan, no job has GPUs, or a check failed.
    """
    from huggingface_hub import constants

    config = read_config(profile)
    job = largest(plan_jobs(profile, targets))
    resources = probe_resources(job, profile.slurm)
    words = [f"probe:{name}={value!r}" for name, value in resources.items()]
    shown = [f", {name} {resources[name]}" for name in ("slurm_partition", "slurm_account") if name in resources]
    size = f"{count(resources.get('nodes') or 1, 'node')} with {count(job.gpus, 'GPU')}"
    print(f"waiting for a job of {size} in all, as rule {job.rule} takes{''.join(shown)}", flush=True)
    log = profile.directory / config.pathvars.logs / "probe.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "snakemake", "--set-resources", *words, "--retries", "0"]
    places = profile.directory / config.pathvars.results, Path(constants.HF_HUB_CACHE)
    folders = [place / EXCHANGE for place in places]
    try:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        run = subprocess.run(
            [*command, *profile.command(["probe"])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise UserError(f"{one_line(error)}: results and HF_HOME have to be folders that you may write to") from None
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    lines = text_of(log).splitlines()
    ended = not run.returncode and any(line.startswith("ok    all-reduce") for line in lines)
    if not ended and not any(line.startswith("FAIL") for line in lines):
        lines += [*run.stdout.splitlines(), "FAIL  job: it did not run to its end; see the lines above"]
    print("\n".join(lines))
    if failed := sum(line.startswith("FAIL") for line in lines):
        raise UserError(f"{failed} checks of {log} failed; mend what they name and probe again")


def largest(jobs: Iterable[PlannedJob]) -> PlannedJob:
    """Return the job with the most nodes, and of these the most GPUs.

    Raises:
        UserError: no job has GPUs.
    """
    with_gpus = [job for job in jobs if job.gpus]
    if not with_gpus:
        raise UserError("no job that is left to do takes GPUs, so there is nothing to probe: name other TARGETS")
    return max(with_gpus, key=lambda job: (job.resources.get("nodes") or 1, job.gpus))


def probe_resources(job: PlannedJob, settings: Any) -> dict[str, Any]:
    """Return the resources of a job, for a few minutes only.

    Args:
        job: the job.
        settings: those of the SLURM plugin; None without SLURM. The plugin chooses a partition by the time limit too, so the
            one that it chooses for the job is named.
    """
    kept = {name: value for name, value in job.resources.items() if name not in DERIVED and not name.startswith("_")}
    kept["runtime"] = MINUTES
    if settings is not None:
        (words,) = slurm.requests([job], settings)
        if "-p" in words:
            kept["slurm_partition"] = words[words.index("-p") + 1]
    return kept
