"""Profiles as Snakemake reads them, the configuration that belongs to one, and the jobs that a run would do."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.artifacts import contents
from pipeline.config import PROJECT, Config, load, load_yaml
from pipeline.config.checks import check_config
from pipeline.config.local import check_local_sources
from pipeline.gpus import gpus_of, python_of_jobs
from pipeline.measure.run import check_together
from pipeline.stages import rule_of, stage_of
from swiftkv.errors import UserError
from swiftkv.io import text_of
from swiftkv.section import nearest

EXCLUSIVE = "--exclusive"  # in a job's slurm_extra: nothing else runs on its nodes


class Resources(dict):
    """Resources of a job, as items and, as Snakemake's SLURM plugin reads them, as attributes."""

    __getattr__ = dict.__getitem__


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run.

    Attributes:
        rule: its name; `measure` of every set of points.
        wildcards: by name.
        inputs, outputs, benchmark: paths.
        threads: on the processor.
        resources: as rule, profile and site state them.
    """

    rule: str
    wildcards: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    benchmark: str | None = None
    threads: int = 1
    resources: Resources = field(default_factory=Resources)

    @property
    def name(self) -> str:
        """Return its name in Snakemake's SLURM plugin."""
        return self.rule

    @property
    def local(self) -> bool:
        """Return True if it runs beside Snakemake, also where others go to a cluster."""
        return stage_of(self.rule).local

    @property
    def gpus(self) -> int:
        """GPUs over all its nodes."""
        return gpus_of(self.resources)

    @property
    def points(self) -> list[str]:
        """The serving points that it measures."""
        return [Path(file).parts[-4] for file in self.outputs] if self.rule == "measure" else []


@dataclass(frozen=True)
class Profile:
    """A folder of profiles/, or a copy of one.

    Attributes:
        folder: the folder of the profile.
        configfiles: what overrides config.yaml and artifacts.yaml, in order.
        jobs: jobs in a cluster's queue at once; None is any number.
        cores: cores of this machine that jobs share; None on a cluster.
        resources: limits over all jobs, such as gpu; on this machine also `machine_resources`, unless others are stated.
        attempts: how often a job is tried; what it asks for may grow each time.
        directory: the folder that the run works in.
        python: how jobs start Python.
        slurm: settings of Snakemake's SLURM plugin; None where jobs do not go to SLURM.
    """

    folder: Path
    configfiles: tuple[Path, ...] = ()
    jobs: int | None = None
    cores: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    directory: Path = Path()
    python: tuple[str, ...] = (sys.executable,)
    slurm: Any = None

    def command(self, targets: Sequence[str] = ()) -> list[str]:
        """Return the words after `snakemake` that make some files, or all artifacts."""
        words = ["--snakefile", str(PROJECT / "Snakefile"), "--profile", str(self.folder)]
        words += ["--configfile", *map(str, self.configfiles)] if self.configfiles else []
        return [*words, "--", *targets]


def machine_resources() -> dict[str, int]:
    """Return what the jobs of a machine without scheduler share: its memory in MB, and one turn at its GPUs."""
    return {"mem_mb": memory_mb(), "gpu_turn": 1}


def memory_mb(root: Path = Path("/")) -> int:
    """Return the free memory of this machine in MB, as far as control groups let this process use it.

    That is the kernel's estimate, or less where a control group of this process, or one above it, has a limit: the limit
    less what its processes use. Pages of files that were read and can be dropped count as free.

    Args:
        root: folder in which /proc and /sys lie.
    """
    free = [1024 * (_number(root / "proc/meminfo", "MemAvailable:") or 0)]
    groups = root / "proc/self/cgroup"
    for line in text_of(groups).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        # The names of version 2, where all controllers share one tree, and of version 1.
        names, top = ("memory.max", "memory.current", "inactive_file"), root / "sys/fs/cgroup"
        if controllers:
            names, top = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), top / "memory"
        folder = top / path.strip("/")
        for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(top))):
            if (limit := _number(group / names[0])) is not None:
                cached = _number(group / "memory.stat", names[2]) or 0
                free.append(max(0, limit - max(0, (_number(group / names[1]) or 0) - cached)))
    return min(free) // 10**6


def _number(file: Path, field: str = "") -> int | None:
    """Read the number of a line that begins with `field`; None where there is none."""
    found = re.search(rf"^{field}\s*(\d+)( kB)?$", text_of(file), re.MULTILINE)
    return int(found[1]) if found else None


def read_profile(name: str | Path, configfiles: Sequence[str] = ()) -> Profile:
    """Read a profile as Snakemake itself does.

    Args:
        name: a folder under profiles/ of the project, or a path.
        configfiles: added to the profile's own.

    Raises:
        UserError: there is no such profile, or it is not valid.
    """
    from snakemake.cli import ExecutorPluginRegistry, get_argument_parser, get_profile_dir, parse_args
    from snakemake.exceptions import WorkflowError

    folder = PROJECT / "profiles" / name
    folder = folder if folder.is_dir() else Path(name)
    if not folder.is_dir():
        known = sorted(path.parent.name for path in PROJECT.glob("profiles/*/profile.yaml"))
        raise UserError(
            f"there is no profile {str(name)!r}{nearest(str(name), known)}; it is one of {', '.join(known)}, or a folder "
            "with a profile.yaml"
        )
    for file in configfiles:
        if not Path(file).is_file():
            raise UserError(f"there is no configuration file {file!r}: correct CONFIG, or --configfile")
    if place := get_profile_dir(str(folder)):
        # Snakemake leaves out a mapping whose key it does not know, without a word.
        options = [option.removeprefix("--") for option in get_argument_parser()._option_string_actions]
        if unknown := [key for key in load_yaml(place[1]) if key not in options]:
            raise UserError(f"{place[1]}: Snakemake has no option {unknown[0]!r}{nearest(unknown[0], options)}")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            _, args = parse_args(["--profile", str(folder), "--dry-run"])
            slurm = (
                ExecutorPluginRegistry().get_plugin("slurm").get_settings(args) if args.executor == "slurm" else None
            )
        except WorkflowError as error:
            raise UserError(f"the profile {str(folder)!r}: {error}") from None
        except SystemExit:
            sentence = said.getvalue().strip().rpartition("\n")[2]
            raise UserError(f"Snakemake cannot read the profile {str(folder)!r}: {sentence}") from None
    if slurm:
        read_partitions(slurm.partition_config)
    cluster = args.executor not in (None, "local")
    limits = {name: limit.value for name, limit in (args.resources or {}).items() if isinstance(limit.value, int)}
    return Profile(
        folder=folder,
        configfiles=tuple(map(Path, [*(args.configfile or []), *configfiles])),
        jobs=args.jobs if cluster and isinstance(args.jobs, int) and args.jobs < sys.maxsize else None,
        cores=None if cluster else args.cores or os.cpu_count(),
        resources=limits if cluster else machine_resources() | limits,
        attempts=1 + args.retries,
        directory=Path(args.directory or ""),
        python=tuple(python_of_jobs(map(str, args.software_deployment_method), PROJECT)),
        slurm=slurm,
    )


def read_partitions(file: Path | None) -> list[Any]:
    """Read the file of the partitions as Snakemake's SLURM plugin does; none without a file.

    Raises:
        UserError: it is not valid.
    """
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.partitions import read_partition_file

    if file is None:
        return []
    if other := [name for name in load_yaml(file).get("partitions") or [] if not isinstance(name, str)]:
        raise UserError(f"{file}: YAML does not read the partition's name {other[0]} as text: write it in quotes")
    try:
        return read_partition_file(file)
    except (WorkflowError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{file}: {error}") from None


def refuse_replaced_configuration(words: Sequence[str], files: Iterable[str | Path]) -> None:
    """Refuse a --configfile on Snakemake's command line that replaces the files of the profile beside it.

    Args:
        words: the command line.
        files: the configuration files that Snakemake takes.

    Raises:
        UserError: a file of the profile is not among them.
    """
    from snakemake.cli import get_profile_dir

    taken = {Path(file).resolve() for file in files}
    for option, name in pairwise(part for word in words for part in word.split("=", 1)):
        if option == "--profile" and (place := get_profile_dir(name)):
            own = load_yaml(place[1]).get("configfile") or []
            for file in [own] if isinstance(own, str) else own:
                if (place[1].parent / file).resolve() not in taken:
                    raise UserError(
                        f"--configfile replaces {file} of the profile {name!r}: name both, the profile's first, or use "
                        "`make reproduce` with PROFILE, CONFIG and TARGETS"
                    )


def read_config(profile: Profile, added: Mapping[str, Any] | None = None) -> Config:
    """Read the configuration of a profile, merged by Snakemake's own rules and checked as a run checks it.

    Args:
        profile: the profile.
        added: merged last, as the content of a further file would be.

    Raises:
        UserError: it is not valid.
    """
    from snakemake.utils import update_config

    config = load(*profile.configfiles)
    update_config(config, added or {})
    return checked(config, profile.directory)


def checked(config: dict[str, Any], directory: Path = Path()) -> Config:
    """Return the typed form of a merged configuration, with all checked that can be known before any work.

    Args:
        config: as Snakemake merges it.
        directory: the folder that the run works in, from which relative paths of local sources are meant.

    Raises:
        UserError: it is not valid.
    """
    typed = check_config(config)
    contents.check_artifacts(typed)
    check_together(typed)
    check_local_sources(typed, directory)
    return typed


def plan_jobs(
    profile: Profile, targets: Sequence[str] = (), *, everything: bool = False, attempt: int = 1
) -> list[PlannedJob]:
    """Return the jobs that Snakemake would run; none where nothing is left to do.

    Args:
        profile: the profile that they would run with.
        targets: files or rules; none stands for all artifacts.
        everything: also what is finished.
        attempt: what jobs ask for may grow with it.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    words = ["--attempt", attempt, *(["--forceall"] if everything else [])]
    return dry_run(*words, *profile.command(targets))


def dry_run(*words: object) -> list[PlannedJob]:
    """Return the jobs of a dry run in this process, from the events that Snakemake gives its logger plugins.

    Args:
        words: Snakemake's command line.

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
            jobs.append(planned(record.rule_name, record.wildcards, record))
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


def planned(rule: str, wildcards: Mapping[str, str], job: Any) -> PlannedJob:
    """Return a job of Snakemake's, or of an event of it, as plans have it: without resources that only a running job knows."""
    resources = {name: value for name, value in job.resources.items() if "<TBD>" not in str(value)}
    files = tuple(job.input), tuple(job.output), job.benchmark
    return PlannedJob(rule_of(rule), dict(wildcards), *files, job.threads, Resources(resources))


def parents(jobs: Mapping[int, PlannedJob]) -> dict[int, list[int]]:
    """Return the numbers of the jobs that make what each job reads."""
    makers = {path: number for number, job in jobs.items() for path in job.outputs}
    return {
        number: sorted({makers[path] for path in job.inputs if path in makers} - {number})
        for number, job in jobs.items()
    }
