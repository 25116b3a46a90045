"""The work still to do, as Snakemake plans it with a profile, and what the profile gives it to run on."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from swiftkv.errors import UserError

LOCAL_RULES = ("all", "table", "figure", "merge_scores")  # those of `localrules`, which a dry run does not tell
LISTS = ("input", "output")
PAIRS = ("wildcards", "resources")


@dataclass(frozen=True)
class Profile:
    """What a profile says about where jobs run.

    Attributes:
        name: of its folder.
        configfiles: what overrides config.yaml and artifacts.yaml, in order.
        jobs: jobs in a cluster's queue at once; None where there is no cluster.
        cores: cores of this machine that jobs share; None on a cluster.
        resources: limits over all jobs, such as gpu.
    """

    name: str
    configfiles: tuple[Path, ...]
    jobs: int | None
    cores: int | None
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedJob:
    """One job of a dry run."""

    rule: str
    wildcards: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    benchmark: str | None
    threads: int
    priority: int
    resources: Mapping[str, str]

    @property
    def gpus(self) -> int:
        """GPUs over all its nodes."""
        return int(self.resources.get("gpu", 0))

    @property
    def local(self) -> bool:
        """Whether it runs beside Snakemake, also where others go to a cluster."""
        return self.rule in LOCAL_RULES


def read_profile(folder: str | Path, configfiles: Sequence[str] = ()) -> Profile:
    """A profile as Snakemake itself reads it.

    Args:
        folder: with a profile.yaml or config.yaml.
        configfiles: given in place of the profile's own.

    Raises:
        UserError: there is no such profile, or it is not valid.
    """
    from snakemake.cli import parse_args

    if not Path(folder).is_dir():
        known = ", ".join(sorted(path.name for path in Path(folder).parent.glob("*") if path.is_dir()))
        raise UserError(f"there is no profile {str(folder)!r}" + (f" (there are: {known})" if known else ""))
    words = ["--profile", str(folder), "--dry-run"]
    words += ["--configfile", *configfiles] if configfiles else []
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            _, args = parse_args(words)
        except SystemExit:
            raise UserError(f"Snakemake cannot read the profile {str(folder)!r}; `snakemake -n` says why") from None
    cluster = args.executor not in (None, "local")
    return Profile(
        name=Path(folder).name,
        configfiles=tuple(map(Path, args.configfile or ())),
        jobs=(args.jobs if isinstance(args.jobs, int) else None) or sys.maxsize if cluster else None,
        cores=None if cluster else args.cores or os.cpu_count(),
        resources={name: limit.value for name, limit in (args.resources or {}).items() if isinstance(limit.value, int)},
    )


def read_config(root: Path, profile: Profile) -> dict[str, Any]:
    """The configuration of a profile, merged by Snakemake's own rules and checked as a run would check it.

    Raises:
        UserError: it is not valid.
    """
    from snakemake.utils import update_config

    from swiftkv import config as cfg
    from swiftkv.artifacts import contents

    files = [root / "config.yaml", root / "artifacts.yaml", *profile.configfiles]
    cfg.refuse_duplicate_keys([str(file) for file in files])
    config: dict[str, Any] = {}
    for file in files:
        update_config(config, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    cfg.check(config, root / "workflow/schemas/config.schema.yaml")
    contents.check(config)
    return config


def plan_jobs(
    profile: str | Path,
    targets: Sequence[str] = (),
    configfiles: Sequence[str] = (),
    *,
    everything: bool = False,
    snakefile: Path | None = None,
) -> list[PlannedJob]:
    """The jobs that Snakemake would run; none where nothing is left to do.

    Args:
        profile: folder of the profile.
        targets: files or rules; none stands for all artifacts.
        configfiles: given in place of the profile's own.
        everything: also what is finished.
        snakefile: of the workflow; the one in this folder if not given.

    Raises:
        UserError: Snakemake cannot plan; its own sentence.
    """
    command = [sys.executable, "-m", "snakemake", "--profile", str(profile), "--dry-run", "--quiet", "host"]
    command += ["--snakefile", str(snakefile)] if snakefile else []
    command += ["--forceall"] if everything else []
    command += ["--configfile", *configfiles] if configfiles else []
    run = subprocess.run([*command, "--", *targets], capture_output=True, text=True)
    if run.returncode:
        lines = [line.strip() for line in (run.stderr + run.stdout).splitlines()]
        lines = [line for line in lines if line and not line.endswith("...")]
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise UserError(said[0] if said else "Snakemake cannot plan: " + " ".join(lines[-3:])[:500])
    return parse_dry_run(run.stdout + run.stderr)


def parse_dry_run(text: str) -> list[PlannedJob]:
    """The jobs of what `snakemake --dry-run` prints."""
    jobs = []
    for block in re.split(r"\n(?=(?:local)?rule \w+:\n)", text)[1:]:
        found: dict[str, Any] = {}
        for line in block.splitlines()[1:]:
            entry = re.match(r"    (\w+): (.*)$", line)
            if not entry:
                break
            found[entry[1]] = entry[2]
        lists = {name: tuple(found[name].split(", ")) if name in found else () for name in LISTS}
        pairs = {
            name: dict(pair.split("=", 1) for pair in found.get(name, "").split(", ") if "=" in pair) for name in PAIRS
        }
        jobs.append(
            PlannedJob(
                rule=re.match(r"(?:local)?rule (\w+):", block)[1],
                wildcards=pairs["wildcards"],
                inputs=lists["input"],
                outputs=lists["output"],
                benchmark=found.get("benchmark"),
                threads=int(found.get("threads", 1)),
                priority=int(found.get("priority", 0)),
                resources=pairs["resources"],
            )
        )
    return jobs


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
    found, waiting = set(), [number]
    while waiting:
        job = waiting.pop()
        if job not in found:
            found.add(job)
            waiting += graph[job]
    return found
