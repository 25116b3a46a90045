"""The work still to do, as Snakemake plans it with a profile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.planning.profile import Profile

LOCAL_RULES = ("all", "table", "figure", "merge_scores")  # those of `localrules`, which a dry run does not tell
LISTS = ("input", "output")
PAIRS = ("wildcards", "resources")
UNKNOWN = "<TBD>"  # a resource that only the running job will know


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
    priority: int = 0
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
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", "--attempt", attempt]
    command += ["--snakefile", root / "Snakefile", "--profile", profile.folder]
    command += ["--forceall"] if everything else []
    command += ["--configfile", *profile.configfiles] if profile.configfiles else []
    run = subprocess.run([*map(str, command), "--", *targets], capture_output=True, text=True)
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
        resources = {
            name: int(value) if re.fullmatch(r"-?\d+", value) else value
            for name, value in pairs["resources"].items()
            if value != UNKNOWN
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
                resources=Resources(resources),
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
