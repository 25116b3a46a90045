"""What SLURM thinks of the planned jobs, asked before one of them is submitted."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from swiftkv.errors import UserError
from swiftkv.preflight.nodes import FORMAT, Nodes, place, read_nodes, too_long, unmet

JOB_NAME = "preflight"
LATER = " at attempt "  # between a rule and the number of an attempt that asks for more
PROGRAMS = ("sbatch", "squeue", "scontrol")
ANSWER_SECONDS = 60  # a busy controller may take this long
# What SLURM says of nodes that are not there just now, besides other things; a submitted job would wait for them.
PASSING = (
    "Required node not available",
    "Requested node configuration is not available",
    "Requested nodes are busy",
    "Nodes required for job are DOWN",
    "Requested partition configuration not available now",
)


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


class Verdict(NamedTuple):
    """What SLURM says of the planned jobs.

    Attributes:
        refused: a sentence for each thing that no job will get.
        waiting: a sentence for each thing that jobs will have to wait for.
    """

    refused: list[str]
    waiting: list[str]


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
            raise UserError(f"rule {rule} cannot be submitted: {' '.join(str(error).split())}") from None
        words = tuple(word for word in shlex.split(command)[1:] if word != "--parsable")
        request = found.setdefault(words, Request(words, job.resources, []))
        if rule not in request.rules:
            request.rules.append(rule)
    return list(found.values())


def controller() -> str:
    """Whether SLURM is here and answers.

    Raises:
        UserError: it is not, or does not.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UserError(
            f"{', '.join(missing)} not found, so this machine has no SLURM: run on a login node of the cluster, or load "
            "its SLURM module"
        )
    _, said = _ask("scontrol", "ping")
    if " is UP" not in said:
        raise UserError(
            "SLURM's controller does not answer (`scontrol ping`): wait until it does, or ask the administrators"
        )
    return "the controller answers"


def accounts(requests: Iterable[Request]) -> str:
    """Whether the accounts are the user's, by the question that the executor plugin asks before it submits a job.

    Raises:
        UserError: naming the first that is not.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.accounts import validate_account

    logger = logging.Logger("accounts")  # it warns where SLURM keeps no accounts; sbatch is asked too
    logger.addHandler(logging.NullHandler())
    asked: dict[str, list[str]] = {}
    for request in requests:
        for account in re.split(r"[,\s]+", str(request.resources.get("slurm_account") or "")):
            if account:
                asked.setdefault(account, []).extend(request.rules)
    for account, rules in asked.items():
        try:
            validate_account(account, logger)
        except OSError:
            raise UserError("sacctmgr not found, which Snakemake's SLURM plugin asks for your accounts") from None
        except WorkflowError as error:
            yours = str(error).rpartition("Available accounts:")[2].split()
            raise UserError(
                f"account {account!r} is not one of yours, which are {' '.join(yours)} (of rule {_listed(rules)}): set "
                "slurm_account in the profile's profile.yaml"
                if "Available accounts:" in str(error)
                else f"account {account!r} cannot be checked: {' '.join(str(error).split())}"
            ) from None
    return ", ".join(asked) or "none is named, so SLURM takes your default one"


def verdict(requests: Iterable[Request]) -> Verdict:
    """Have SLURM judge every request (`sbatch --test-only`), and name what it lacks."""
    refused: dict[tuple[str, str], list[str]] = {}
    waiting: dict[tuple[str, str], list[str]] = {}
    known: dict[str, list[Nodes]] = {}
    for request in requests:
        status, said = _ask("sbatch", "--test-only", *request.words, "--wrap", "true")
        partition = str(request.resources.get("slurm_partition") or "")
        if partition not in known:
            known[partition] = _nodes(partition)
        if status == 0:
            # Most SLURMs take a job whose time limit its partition does not allow, and never start it.
            causes = too_long(request.resources, known[partition])
        else:
            causes = _named(request, said) or unmet(request.resources, known[partition])
        found = refused
        if status and not causes:
            said = _message(said)
            causes = [(f"SLURM says {said!r}", f"ask it yourself with `{_shown(request)}`")]
            if any(words in said for words in PASSING):
                found = waiting
                causes = [(f"SLURM says {said!r}, though it has such nodes", "they may be down, drained or reserved")]
        for cause in causes:
            found.setdefault(cause, []).extend(request.rules)
    return Verdict(_sentences(refused), _sentences(waiting))


def earlier_jobs(folder: str | os.PathLike) -> str:
    """Whether jobs of an earlier controller of this working directory are still in the queue.

    A controller that is killed leaves its jobs running; they write the files that the next one's jobs would write.

    Raises:
        UserError: there are some; it names them.
    """
    status, said = _ask("squeue", "--me", "--noheader", "--format", "%i|%Z|%k")
    if status:
        raise UserError(f"SLURM does not say which of your jobs are in the queue: {_message(said)}")
    found = {}
    for line in said.splitlines():
        number, _, rest = line.strip().partition("|")
        where, _, comment = rest.partition("|")
        if comment.startswith(("rule_", "group_")) and os.path.realpath(where) == os.path.realpath(folder):
            found[number] = re.sub(r"_wildcards.*", "", comment).partition("_")[2]
    if found:
        named = ", ".join(f"{number} ({rule})" for number, rule in found.items())
        raise UserError(
            f"jobs of an earlier run in this directory are still in SLURM's queue and would write the same results: {named}; "
            f"wait until they have ended, or end them with `scancel {' '.join(found)}`, and run again"
        )
    return "no job of an earlier run is in the queue"


def _named(request: Request, said: str) -> list[tuple[str, str]]:
    """(what is wrong, what to do) where SLURM's own words tell."""
    partition, account = (request.resources.get(name) for name in ("slurm_partition", "slurm_account"))
    if "invalid partition" in said.lower():
        _, listed = _ask("sinfo", "--noheader", "--format", "%R")
        known = ", ".join(dict.fromkeys(listed.split())) or "none"
        return [
            (
                f"SLURM has no partition {partition!r}, only {known}",
                f"correct slurm_partition {place(request.resources)}",
            )
        ]
    if "invalid account" in said.lower():
        return [
            (
                f"SLURM does not let you use account {account!r} in partition {partition!r}",
                "set slurm_account in the profile's profile.yaml to one that `sacctmgr show associations user=$USER` lists",
            )
        ]
    if "invalid qos" in said.lower():
        return [("SLURM does not let you use this quality of service", "correct qos or slurm-qos in the profile")]
    return []


def _nodes(partition: str) -> list[Nodes]:
    chosen = ["--partition", partition] if partition else []
    status, listed = _ask("sinfo", "--noheader", "--exact", *chosen, "--format", FORMAT)
    return [] if status else read_nodes(listed)


def _ask(*command: str) -> tuple[int, str]:
    """Exit status of a program of SLURM, and all it says."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, f"{command[0]}: {type(error).__name__}"
    return run.returncode, run.stdout + run.stderr


def _message(said: str) -> str:
    """The last thing that a program said, without its name."""
    lines = [re.sub(r"^\w+: (error: )?|^allocation failure: ", "", line.strip()) for line in said.splitlines()]
    return re.sub(r"^allocation failure: ", "", next((line for line in reversed(lines) if line), "nothing"))


def _listed(rules: Sequence[str]) -> str:
    """The rules, without later attempts of those that are there anyway."""
    return ", ".join(
        rule for rule in dict.fromkeys(rules) if rule.partition(LATER)[0] not in rules or LATER not in rule
    )


def _sentences(found: dict[tuple[str, str], list[str]]) -> list[str]:
    return [f"{wrong} (of rule {_listed(rules)}): {mend}" for (wrong, mend), rules in found.items()]


def _shown(request: Request) -> str:
    names = ("--job-name", "--output", "--comment", "--export=ALL")
    words = [word for word in request.words if word not in (*names, JOB_NAME, os.devnull)]
    return shlex.join(["sbatch", "--test-only", *words, "--wrap", "true"])
