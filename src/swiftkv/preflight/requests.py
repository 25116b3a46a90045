"""The planned jobs, and what they ask SLURM for: one request for all jobs that ask for the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from swiftkv.errors import UserError

UNKNOWN = "<TBD>"
JOB_NAME = "preflight"
LATER = " at attempt "  # between a rule and the number of an attempt that asks for more


class Resources(dict):
    """Resources of a job, as items and, as the executor plugin reads them, as attributes."""

    __getattr__ = dict.__getitem__


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run."""

    rule: str
    wildcards: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    resources: Resources = field(default_factory=Resources)


@dataclass
class Request:
    """What some jobs ask of SLURM.

    Attributes:
        words: arguments of sbatch.
        resources: as the rules and the profile state them.
        rules: the rules whose jobs ask for it.
    """

    words: tuple[str, ...]
    resources: Any
    rules: list[str]


def planned_jobs(arguments: list[str], attempt: int = 1) -> list[PlannedJob]:
    """The jobs that a run would start now, from a dry run.

    Args:
        arguments: of snakemake.
        attempt: what jobs ask for may grow with it.

    Raises:
        UserError: the plan cannot be made; the message is the first error.
    """
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", "--attempt", str(attempt), *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("error: ")), " ".join(lines[-3:]) or "it says nothing")
        raise UserError(f"snakemake cannot plan the run: {said.removeprefix('error: ')}")
    return read_plan(run.stdout + run.stderr)


def read_plan(text: str) -> list[PlannedJob]:
    """The jobs in what a dry run prints."""
    jobs = []
    for block in re.split(r"\n(?=(?:local)?rule \w+:\n)", text)[1:]:
        found = dict(re.findall(r"^    (wildcards|threads|resources): (.*)$", block, flags=re.MULTILINE))
        jobs.append(
            PlannedJob(
                rule=re.match(r"(?:local)?rule (\w+):", block)[1],
                wildcards=_pairs(found.get("wildcards", "")),
                threads=int(found.get("threads", 1)),
                resources=Resources(
                    {
                        name: int(value) if re.fullmatch(r"-?\d+", value) else value
                        for name, value in _pairs(found.get("resources", "")).items()
                        if value != UNKNOWN
                    }
                ),
            )
        )
    return jobs


def slurm_requests(jobs: Iterable[tuple[str, Any]], settings: Any) -> list[Request]:
    """The distinct requests of jobs, in the words of the plugin that will submit them.

    Args:
        jobs: (rule, job), where a job has `threads` and `resources`; one of Snakemake's own will do.
        settings: the plugin's: requeue, no_requeue, qos, reservation.

    Raises:
        UserError: the plugin refuses a job's resources.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    found: dict[tuple[str, ...], Request] = {}
    for rule, job in jobs:
        account, partition = (job.resources.get(name) for name in ("slurm_account", "slurm_partition"))
        parameters = {
            "run_uuid": JOB_NAME, "slurm_logfile": os.devnull, "comment_str": JOB_NAME, "workdir": None,
            "account": f"-A {shlex.quote(str(account))}" if account else "",
            "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
        }  # fmt: skip
        try:
            command = get_submit_command(job, parameters, settings=settings) + set_gres_string(job)
        except WorkflowError as error:
            raise UserError(f"rule {rule} cannot be submitted: {' '.join(str(error).split())}") from None
        words = tuple(word for word in shlex.split(command)[1:] if word != "--parsable")
        request = found.setdefault(words, Request(words, job.resources, []))
        if rule not in request.rules:
            request.rules.append(rule)
    return list(found.values())


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(", ") if "=" in pair)
