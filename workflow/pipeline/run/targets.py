"""Error messages for unknown targets, and for rules and resources of a profile that do not exist."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from pipeline.artifacts import contents
from pipeline.config import Config
from pipeline.stages import STAGES
from swiftkv.errors import UserError
from swiftkv.section import nearest

# Resources that Snakemake, its SLURM plugin or a rule here reads.
RESOURCES = {
    "gpu", "gpu_turn", "gpu_model", "gres", "nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task",
    "cpus_per_gpu", "mpi", "mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "tmpdir", "runtime",
    "slurm_account", "slurm_partition", "slurm_extra", "clusters", "constraint", "qos", "reservation", "threads",
}  # fmt: skip
SECTIONS = {"kv_cache": ["auto", "fp8"]}  # wildcards of paths that are no section of the configuration


def why_not_made(config: Config, file: str) -> str:
    """Return why no stage makes a file at this scale, and which file may be meant."""
    results, place = config.pathvars.results, Path(file)
    name = place.name if place.name in config.artifacts else place.stem
    if place.parent.name in ("tables", "figures") or name in config.artifacts or len(place.parts) == 1:
        try:
            contents.check_made(config, name)
        except UserError as error:
            return str(error)
        form = contents.kind_of(config, name).form
        files = [f"{results}/{output.format(artifact=name)}" for output in STAGES[form].outputs]
        meant = next((output for output in files if Path(output).suffix == place.suffix), files[0])
        return f"nothing makes {file}: {name} is a {form} of this scale, such as {meant}"
    if not file.startswith(f"{results}/"):
        return (
            f"nothing makes {file}: results of this scale lie in {results}/ (a --configfile replaces the profile's own; "
            "`make reproduce CONFIG=...` adds to it)"
        )
    for stage in STAGES.values():
        for output in stage.outputs:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(output))
            match = re.fullmatch(pattern, file.removeprefix(f"{results}/"))
            for section, value in match.groupdict().items() if match else ():
                points = config.serving.points if section == "point" else [value]
                known = SECTIONS.get(section) or getattr(config, f"{section}s", points)
                if value not in known:
                    return f"nothing makes {file}: there is no {section} {value!r}{nearest(value, known)}"
    return f"nothing makes {file}: docs/artifacts.md says which files there are; of a checkpoint name config.json"


def explain(config: Config, record: logging.LogRecord) -> bool:
    """Put the reason in place of Snakemake's message that it has no rule for a file; a filter of its logger.

    Returns:
        True: the message is shown.
    """
    if file := re.search(r"No rule to produce (.+) \(if you", record.getMessage()):
        record.msg, record.args = f"error: {why_not_made(config, file[1])}", ()
    return True


def check_names(
    rules: Collection[str], changed: Mapping[str, Collection[str]], resources: Mapping[str, Collection[str]]
) -> None:
    """Raise a `UserError` for the first name in a profile or site file that nothing reads, such as a misspelt one.

    Args:
        rules: those there are.
        changed: key of a profile -> the rules that it names.
        resources: key of a profile or site file -> the resources that it names; limits over all jobs, by the key
            "resources", may have names of the user's own.
    """
    for key, names in changed.items():
        for name in names:
            if name not in rules:
                raise UserError(f"the profile's {key} names {name!r}, but there is no such rule{nearest(name, rules)}")
    known = [*RESOURCES, *resources["resources"]]
    for key, names in resources.items():
        for name in names:
            if name not in known and not name.startswith("_"):
                raise UserError(f"{key} has {name!r}, which nothing reads{nearest(name, known)}")
