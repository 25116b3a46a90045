"""The work still to do, as Snakemake plans it with a profile."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from swiftkv.errors import UserError
from swiftkv.planning.profile import Profile
from swiftkv.pricing.work import PlannedJob, Resources
from swiftkv.stages import stage_of


def plan_jobs(
    profile: Profile, root: Path, targets: Sequence[str] = (), *, everything: bool = False, attempt: int = 1
) -> list[PlannedJob]:
    """The jobs that Snakemake would run; none where nothing is left to do.

    Args:
        profile: the profile that they would run with.
        root: folder of the project.
        targets: files or rules; none stands for all artifacts.
        everything: also what is finished.
        attempt: what jobs ask for may grow with it.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    words = ["--attempt", attempt, *(["--forceall"] if everything else [])]
    return dry_run(*words, *profile.command(root, targets))


def dry_run(*words: object) -> list[PlannedJob]:
    """The jobs of a dry run in this process, from the events that Snakemake gives its logger plugins.

    Args:
        words: Snakemake's command line, word by word.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    from snakemake import cli
    from snakemake.logging import logger
    from snakemake_interface_logger_plugins.common import LogEvent

    jobs: list[PlannedJob] = []
    sentences: list[str] = []
    said = io.StringIO()

    def read(record: logging.LogRecord) -> bool:
        # A job without output, as that of rule all, makes nothing.
        if getattr(record, "event", None) == LogEvent.JOB_INFO and record.output:
            jobs.append(_planned(record))
        elif record.levelno >= logging.ERROR:
            sentences.append(" ".join(record.getMessage().split()).removeprefix("error: "))
        return False

    filters = list(logger.filters)  # the Snakefile adds its own
    logger.addFilter(read)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser, arguments = cli.parse_args(["--dry-run", *map(str, words)])
            if cli.args_to_api(arguments, parser):
                return jobs
    except SystemExit as error:  # a sentence of the Snakefile's, or a wrong command line
        sentences = [str(error.code).removeprefix("error: ").split("\n")[0] if error.code != 2 else said.getvalue()]
    finally:
        logger.filters[:] = filters
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
        local=stage_of(about["rule_name"]).local,
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
