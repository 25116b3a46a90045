"""The work still to do, as Snakemake plans it with a profile."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swiftkv.errors import UserError
from swiftkv.planning.profile import Profile

LOCAL_RULES = ("all", "table", "figure", "merge_scores")  # those of `localrules`, which a dry run does not tell


class Resources(dict):
    """Resources of a job, as items and, as Snakemake's SLURM plugin reads them, as attributes; whole numbers are numbers."""

    __getattr__ = dict.__getitem__


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run."""

    rule: str
    wildcards: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    benchmark: str | None = None
    threads: int = 1
    resources: Resources = field(default_factory=Resources)

    @property
    def gpus(self) -> int:
        """GPUs over all its nodes."""
        return self.resources.get("gpu", 0)

    @property
    def local(self) -> bool:
        """Whether it runs beside Snakemake, also where others go to a cluster."""
        return self.rule in LOCAL_RULES


def plan_jobs(
    profile: Profile, root: Path, targets: Sequence[str] = (), *, everything: bool = False, attempt: int = 1
) -> list[PlannedJob]:
    """The jobs that Snakemake would run; none where nothing is left to do.

    Args:
        profile: where they would run.
        root: folder of the project.
        targets: files or rules; none stands for all artifacts.
        everything: also what is finished.
        attempt: what jobs ask for may grow with it.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    words = ["--snakefile", root / "Snakefile", "--profile", profile.folder, "--attempt", attempt]
    words += ["--forceall"] if everything else []
    words += ["--configfile", *profile.configfiles] if profile.configfiles else []
    return dry_run(*words, "--", *targets)


def dry_run(*words: object) -> list[PlannedJob]:
    """The jobs of a dry run in this process, from the events that Snakemake gives its logger plugins.

    Args:
        words: of Snakemake's command line.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    from snakemake import cli
    from snakemake.logging import logger
    from snakemake_interface_logger_plugins.common import LogEvent

    jobs: list[PlannedJob] = []
    sentences: list[str] = []

    def read(record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) == LogEvent.JOB_INFO:
            jobs.append(_planned(record))
        elif record.levelno >= logging.ERROR:
            sentences.append(" ".join(record.getMessage().split()))
        return False

    logger.addFilter(read)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            parser, arguments = cli.parse_args(["--dry-run", *map(str, words)])
            if cli.args_to_api(arguments, parser):
                return jobs
    except SystemExit as error:  # a sentence of the Snakefile's, or a wrong command line
        sentences = [str(error.code).removeprefix("error: ").split("\n")[0] if error.code != 2 else said.getvalue()]
    finally:
        logger.removeFilter(read)
    raise UserError("; ".join(sentences)[:500] or "Snakemake cannot plan: `snakemake --dry-run` says why")


def _planned(event: logging.LogRecord) -> PlannedJob:
    """A job as its event describes it; what only the running job will know of its resources is left out."""
    about = vars(event)
    resources = {name: value for name, value in about["resources"].items() if "<TBD>" not in str(value)}
    return PlannedJob(
        rule=about["rule_name"],
        wildcards=dict(about["wildcards"]),
        inputs=tuple(about["input"]),
        outputs=tuple(about["output"]),
        benchmark=about["benchmark"],
        threads=about["threads"],
        resources=Resources(resources),
    )


def parents(jobs: Iterable[PlannedJob]) -> dict[int, list[int]]:
    """For each job, by its place, the planned jobs that make what it reads."""
    jobs = list(jobs)
    makers = {path: number for number, job in enumerate(jobs) for path in job.outputs}
    return {
        number: sorted({makers[path] for path in job.inputs if path in makers} - {number})
        for number, job in enumerate(jobs)
    }


def ancestors(number: int, graph: Mapping[int, Sequence[int]]) -> set[int]:
    """A job and all that have to run before it."""
    needed, waiting = set(), [number]
    while waiting:
        job = waiting.pop()
        if job not in needed:
            needed.add(job)
            waiting += graph[job]
    return needed
