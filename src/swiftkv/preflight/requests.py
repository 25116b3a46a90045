"""What planned jobs ask SLURM for: one request for all jobs that ask for the same."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swiftkv.errors import UserError

JOB_NAME = "preflight"
LATER = " at attempt "  # between a rule and the number of an attempt that asks for more


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
