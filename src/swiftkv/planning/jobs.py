"""The work still to do, as Snakemake plans it with a profile."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from swiftkv.config import Config
from swiftkv.errors import UserError
from swiftkv.planning.profile import Profile, read_config
from swiftkv.pricing.work import PlannedJob, Resources
from swiftkv.section import nearest
from swiftkv.stages import STAGES, stage_of

# Resources that Snakemake, its SLURM plugin or a rule here reads.
RESOURCES = {
    "gpu", "gpu_turn", "gpu_model", "gres", "nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task",
    "cpus_per_gpu", "mpi", "mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "tmpdir", "runtime",
    "slurm_account", "slurm_partition", "slurm_extra", "clusters", "constraint", "qos", "reservation", "threads",
}  # fmt: skip
SECTIONS = {"kv_cache": ["auto", "fp8"]}  # wildcards of paths that are no section of the configuration


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
    words = ["--attempt", attempt, *(["--forceall"] if everything else [])]
    try:
        jobs = dry_run(*words, *profile.command(root, targets))
    except UserError as error:
        if not (file := re.search(r"No rule to produce (\S+)", str(error))):
            raise
        raise UserError(why_not_made(read_config(root, profile), file[1])) from None
    check_resources(profile, jobs)
    return jobs


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
        # A job without output, as that of rule all, makes nothing.
        if getattr(record, "event", None) == LogEvent.JOB_INFO and record.output:
            jobs.append(_planned(record))
        elif record.levelno >= logging.ERROR:
            sentences.append(" ".join(record.getMessage().split()))
        return False

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
        logger.removeFilter(read)
    raise UserError("; ".join(sentences)[:500] or "Snakemake cannot plan: `snakemake --dry-run` says why")


def why_not_made(config: Config, file: str) -> str:
    """Why no stage makes a file: its place, or a name in it that the configuration does not define."""
    results, sections = config.pathvars.results, SECTIONS | {"point": config.serving.points}
    if not file.startswith(f"{results}/"):
        return f"nothing makes {file}: results of this scale lie in {results}/"
    for stage in STAGES.values():
        for output in stage.outputs:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(output))
            for name, value in (
                match.groupdict() if (match := re.fullmatch(pattern, file[len(results) + 1 :])) else {}
            ).items():
                known = sections.get(name) or getattr(config, f"{name}s", [value])
                if value not in known:
                    return f"nothing makes {file}: there is no {name} {value!r}{nearest(value, known)}"
    return f"nothing makes {file}: docs/artifacts.md says which files there are"


def check_resources(profile: Profile, jobs: Iterable[PlannedJob]) -> None:
    """Raise a `UserError` for the first resource of a job that nothing reads, as a misspelt key of a profile or site file."""
    known = RESOURCES | set(profile.resources)
    for job in jobs:
        for name in job.resources:
            if name not in known and not name.startswith("_"):
                raise UserError(
                    f"rule {job.rule} asks for {name!r}, which nothing reads{nearest(name, known)}; correct the profile's "
                    "profile.yaml or site.yaml"
                )


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
