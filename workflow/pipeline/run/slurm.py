"""Have SLURM judge the planned jobs before any of them is submitted."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from pipeline.run.jobs import PlannedJob, read_partitions
from swiftkv.errors import UserError

JOB_NAME = "check"
PROGRAMS = ("sbatch", "squeue", "scontrol")
ANSWER_SECONDS = 60  # a busy controller may take this long
LOOK_SECONDS = 30  # between looks for preempted jobs, which SLURM forgets after five minutes or more (MinJobAge)
# SLURM's messages where no node fits a job just now; a submitted job waits for one, for ever if none ever fits.
PASSING = (
    "Required node not available",
    "Requested node configuration is not available",
    "Requested nodes are busy",
    "Nodes required for job are DOWN",
    "Requested partition configuration not available now",
)
# Words of SLURM's message -> the keys of the profile or site file to correct.
KEYS = {
    "invalid partition": "slurm_partition",
    "invalid account": "slurm_account",
    "invalid qos": "qos",
    "invalid feature": "constraint",
    "time limit": "runtime",
    "node configuration": "gpu_model, the memory or the processors",
    "memory specification": "the memory",
    "no partition in": "the time limit, the GPUs or the memory",
}
# The plugin tells its logger which partition it chooses for each job.
SILENT = logging.Logger("partitions", logging.CRITICAL)


def requests(jobs: Iterable[PlannedJob], settings: Any) -> dict[tuple[str, ...], list[PlannedJob]]:
    """Return the distinct arguments of sbatch with which the plugin will submit jobs, and the jobs of each.

    Args:
        jobs: all to be submitted.
        settings: the plugin's: partition_config, requeue, no_requeue, qos, reservation.

    Raises:
        UserError: the plugin refuses a job's resources, or the file of the partitions.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.partitions import get_best_partition
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    found: dict[tuple[str, ...], list[PlannedJob]] = {}
    known = read_partitions(settings.partition_config)
    for job in jobs:
        account, partition = (job.resources.get(name) for name in ("slurm_account", "slurm_partition"))
        # The plugin compares a job with the limits of a partition only where it chooses one.
        if fitting := [one for one in known if partition is None or str(partition) == one.name]:
            partition = get_best_partition(fitting, job, SILENT)
        parameters = {
            "run_uuid": JOB_NAME,
            "slurm_logfile": os.devnull,
            "comment_str": JOB_NAME,
            "workdir": None,
            "account": f"-A {shlex.quote(str(account))}" if account else "",
            "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
        }
        try:
            command = get_submit_command(job, parameters, settings=settings) + set_gres_string(job)
        except WorkflowError as error:
            raise UserError(f"rule {job.rule} cannot be submitted: {' '.join(str(error).split())}") from None
        words = tuple(word for word in shlex.split(command)[1:] if word != "--parsable")
        found.setdefault(words, []).append(job)
    return found


def controller() -> str:
    """Check that SLURM is here and answers.

    Raises:
        UserError: it is not, or does not.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UserError(
            f"{', '.join(missing)} not found, so this machine has no SLURM: run on a login node of the cluster, or load "
            "its SLURM module"
        )
    _, said = _run("scontrol", "ping")
    if " is UP" not in said:
        raise UserError(
            "SLURM's controller does not answer (`scontrol ping`): wait until it does, or ask the administrators"
        )
    return "the controller answers"


def verdict(jobs: Iterable[PlannedJob], settings: Any) -> tuple[list[str], list[str]]:
    """Have SLURM judge the requests of all jobs (`sbatch --test-only`).

    Args:
        jobs, settings: as in `requests`.

    Returns:
        A sentence for each problem for which SLURM refuses jobs, and for each request that no node fits at present. A value
        that several requests get wrong is one problem.

    Raises:
        UserError: the plugin refuses a job's resources.
    """
    refused, waiting = list[str](), list[str]()
    problems: dict[str, tuple[str, list[str]]] = {}
    limits = {} if settings.partition_config else partition_limits()
    for words, alike in requests(jobs, settings).items():
        status, said = _run("sbatch", "--test-only", *words, "--wrap", "true")
        message, resources, gpus = f"SLURM says {_message(said)!r}", alike[0].resources, alike[0].gpus
        # Without EnforcePartLimits SLURM takes jobs that are longer than their partition allows, which wait for ever.
        if settings.partition_config and "-p" not in words:
            message = f"no partition in {settings.partition_config} takes it"
        elif status == 0:
            name = resources.get("slurm_partition")
            if (resources.get("runtime") or 0) <= (most := limits.get(name, math.inf)):
                continue
            message = f"partition {name} has a time limit of {most} minutes, and a longer job waits for ever"
        key = next((key for text, key in KEYS.items() if text in message.lower()), "")
        where = "under gpu_jobs in the profile's site.yaml" if gpus else "in the profile"
        if key == "runtime" and gpus:
            key = "longest_runtime"
        value = resources.get(key)
        mend = f"correct {key}{f', now {value!r},' if value else ''} {where}; " if key else ""
        names = ("--job-name", "--output", "--comment", "--export=ALL", JOB_NAME, os.devnull)
        shown = shlex.join(["sbatch", "--test-only", *(word for word in words if word not in names), "--wrap", "true"])
        sentence = f"{message}: {mend}ask it yourself: `{shown}`"
        # Time limits follow estimates, so jobs of one rule differ in them and in nothing else.
        problem = f"{message} {mend}" if value else re.sub(r" -t \d+", "", sentence)
        _, rules = problems.setdefault(problem, (sentence, []))
        rules.extend(job.rule for job in alike)
    for sentence, rules in problems.values():
        passing = any(text in sentence for text in PASSING)
        (waiting if passing else refused).append(f"of rule {', '.join(dict.fromkeys(rules))} {sentence}")
    return refused, waiting


def partition_limits() -> dict[str, int]:
    """Return the longest time of a job in minutes, of each partition of the cluster that has one."""
    from snakemake_executor_plugin_slurm.partitions import parse_scontrol_partition_output
    from snakemake_executor_plugin_slurm.utils import parse_time_to_minutes

    partitions = parse_scontrol_partition_output(_run("scontrol", "show", "partition")[1])
    limits = {name: settings.get("MaxTime", "UNLIMITED") for name, settings in partitions.items()}
    return {name: parse_time_to_minutes(most) for name, most in limits.items() if most != "UNLIMITED"}


def earlier_jobs(folder: str | os.PathLike) -> str:
    """Check that no job of an earlier controller of this working directory is still in the queue.

    A controller that is killed leaves its jobs running; they write the files that the next one's jobs would write.

    Raises:
        UserError: there are some; it names them.
    """
    found = _jobs(folder)
    if found:
        named = ", ".join(f"{number} ({rule})" for number, rule in found.items())
        raise UserError(
            f"jobs of an earlier run in this directory are still in SLURM's queue and would write the same results: {named}; "
            f"wait until they have ended, or end them with `scancel {' '.join(found)}`, and run again"
        )
    return "no job of an earlier run is in the queue"


def cancelling(jobs: Iterable[PlannedJob], settings: Any) -> list[str]:
    """Return the partitions of some jobs that cancel preempted jobs, in place of putting them back into the queue.

    Args:
        jobs, settings: as in `requests`.
    """
    used = {words[words.index("-p") + 1] for words in requests(jobs, settings) if "-p" in words}
    _, said = _run("scontrol", "show", "partition")
    found = {text.split()[0] for text in said.split("PartitionName=")[1:] if re.search(r"PreemptMode=\S*CANCEL", text)}
    return sorted(used & found)


def requeue_preempted(folder: str | os.PathLike) -> None:
    """Put this directory's jobs back into the queue when SLURM cancels them for others, from a thread of this process.

    Snakemake's plugin leaves that to SLURM and waits for them forever.

    Raises:
        UserError: SLURM does not answer.
    """
    earlier, told = _jobs(folder, "--states=PREEMPTED"), set[str]()

    def watch() -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with contextlib.suppress(UserError):  # the controller may be away
                for job, rule in _jobs(folder, "--states=PREEMPTED").items():
                    if job not in earlier:
                        status, said = _run("scontrol", "requeue", job)
                        if status and job not in told:
                            told.add(job)
                            why = f"preempted job {job} ({rule}) is not back in the queue: {_message(said)}"
                            print(f"warning: {why}; trying again every {LOOK_SECONDS} seconds", file=sys.stderr)

    threading.Thread(target=watch, daemon=True).start()


def _jobs(folder: str | os.PathLike, *options: str) -> dict[str, str]:
    """Return the rules of this working directory's jobs by number: of those in the queue, or as options of squeue say.

    Raises:
        UserError: SLURM does not say.
    """
    status, said = _run("squeue", "--me", "--noheader", "--format", "%i|%Z|%k", *options)
    if status:
        raise UserError(f"SLURM does not say which of your jobs are in the queue: {_message(said)}")
    return {
        number: comment.partition("_wildcards")[0]
        for number, where, comment in re.findall(r"(\S+)\|(.*)\|(?:rule|group)_(.*)", said)
        if os.path.realpath(where) == os.path.realpath(folder)
    }


def _run(*command: str) -> tuple[int, str]:
    """Run a program of SLURM; its exit status and its output."""
    try:
        run = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=ANSWER_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, f"{command[0]}: {type(error).__name__}"
    return run.returncode, run.stdout + run.stderr


def _message(said: str) -> str:
    """The last line of a program's output, without the program's name."""
    line = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing")
    return re.sub(r"^(\w+: (error: )?)?(allocation failure: )?", "", line.strip())
