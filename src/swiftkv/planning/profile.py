"""What a profile says about where jobs run, and the configuration they run with."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from swiftkv.artifacts import contents
from swiftkv.config import Config, check, load_yaml
from swiftkv.config.local import check_local_sources
from swiftkv.errors import UserError
from swiftkv.gpus import python_of_jobs
from swiftkv.section import nearest

MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Profile:
    """One folder of profiles/, or a copy of one.

    Attributes:
        folder: the folder of the profile.
        configfiles: what overrides config.yaml and artifacts.yaml, in order.
        jobs: jobs in a cluster's queue at once; None where there is no cluster.
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

    def command(self, root: Path, targets: Sequence[str] = ()) -> list[str]:
        """The words after `snakemake` that run this scale.

        Args:
            root: folder of the project.
            targets: files to make; none stands for all artifacts.
        """
        words = ["--snakefile", str(root / "Snakefile"), "--profile", str(self.folder)]
        words += ["--configfile", *map(str, self.configfiles)] if self.configfiles else []
        return [*words, "--", *targets]


def machine_resources() -> dict[str, int]:
    """What the jobs of a machine without scheduler share: its memory in MB; and one turn at its GPUs, however many it has."""
    return {"mem_mb": memory_mb(), "gpu_turn": 1}


def memory_mb() -> int:
    """MB of memory that are available here, no more than the control group of this process may use."""
    fields = dict(re.findall(r"^(\w+): +(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE))
    limits = [int(fields["MemAvailable"]) * 1024]
    for file in MEMORY_LIMITS:
        text = Path(file).read_text().strip() if Path(file).is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits) // 10**6


def read_profile(name: str | Path, root: Path, configfiles: Sequence[str] = ()) -> Profile:
    """A profile as Snakemake itself reads it.

    Args:
        name: a folder under profiles/ of the project, or a path.
        root: folder of the project.
        configfiles: added to the profile's own.

    Raises:
        UserError: there is no such profile, or it is not valid.
    """
    from snakemake.cli import ExecutorPluginRegistry, get_argument_parser, get_profile_dir, parse_args

    folder = root / "profiles" / name
    folder = folder if folder.is_dir() else Path(name)
    if not folder.is_dir():
        known = ", ".join(sorted(path.parent.name for path in root.glob("profiles/*/profile.yaml")))
        raise UserError(f"there is no profile {str(name)!r}; it is one of {known}, or a folder with a profile.yaml")
    if place := get_profile_dir(str(folder)):
        # Snakemake leaves out a mapping whose key it does not know, without a word.
        options = [option.removeprefix("--") for option in get_argument_parser()._option_string_actions]
        for key in yaml.safe_load(place[1].read_text(encoding="utf-8")) or {}:
            if key not in options:
                raise UserError(f"{place[1]}: Snakemake has no option {key!r}{nearest(key, options)}")
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            _, args = parse_args(["--profile", str(folder), "--dry-run"])
        except SystemExit:
            sentence = said.getvalue().strip().rpartition("\n")[2]
            raise UserError(f"Snakemake cannot read the profile {str(folder)!r}: {sentence}") from None
    cluster = args.executor not in (None, "local")
    slurm = ExecutorPluginRegistry().get_plugin("slurm").get_settings(args) if args.executor == "slurm" else None
    limits = {name: limit.value for name, limit in (args.resources or {}).items() if isinstance(limit.value, int)}
    return Profile(
        folder=folder,
        configfiles=tuple(map(Path, [*(args.configfile or []), *configfiles])),
        jobs=(args.jobs if isinstance(args.jobs, int) else None) or sys.maxsize if cluster else None,
        cores=None if cluster else args.cores or os.cpu_count(),
        resources=limits if cluster else machine_resources() | limits,
        attempts=1 + args.retries,
        directory=Path(args.directory or ""),
        python=tuple(python_of_jobs(map(str, args.software_deployment_method), root)),
        slurm=slurm,
    )


def read_config(root: Path, profile: Profile) -> Config:
    """The configuration of a profile, merged by Snakemake's own rules and checked as a run would check it.

    Raises:
        UserError: it is not valid.
    """
    from snakemake.utils import update_config

    config: dict[str, Any] = {}
    for file in (root / "config.yaml", root / "artifacts.yaml", *profile.configfiles):
        update_config(config, load_yaml(file))
    return checked(config, profile.directory)


def checked(config: dict[str, Any], directory: Path = Path()) -> Config:
    """The typed form of a merged configuration, with all checked that can be known before any work.

    Args:
        config: as Snakemake merges it.
        directory: the folder that the run works in, from which relative paths of local sources are meant.

    Raises:
        UserError: it is not valid.
    """
    typed = check(config)
    contents.check(typed)
    check_local_sources(typed, directory)
    return typed
