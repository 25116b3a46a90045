"""What a job asks for and no node of its partition has: SLURM only says that there is something."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from swiftkv.errors import UserError


class Nodes(NamedTuple):
    """Nodes that are alike.

    Attributes:
        memory: MB a node.
        cpus: a node.
        minutes: the partition's time limit; None without one.
        number: how many there are.
        gpus: model -> how many a node; the model is "" where SLURM is not told.
        features: as constraints name them.
    """

    memory: int
    cpus: int
    minutes: float | None
    number: int
    gpus: dict[str, int]
    features: set[str]


def read_nodes(text: str) -> list[Nodes]:
    """The nodes in lines of `sinfo --exact --format "%m|%c|%l|%D|%G|%f"`; other lines are passed over."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 6 and fields[0].rstrip("+").isdigit():
            memory, cpus, limit, number, generic, features = fields
            models = re.findall(r"\bgpu(?::([A-Za-z][\w.-]*))?:(\d+)", generic)
            found.append(
                Nodes(
                    memory=int(memory.rstrip("+")),
                    cpus=int(cpus.rstrip("+")),
                    minutes=_minutes(limit),
                    number=int(number),
                    gpus={model: int(count) for model, count in models},
                    features=set(features.split(",")) - {"(null)"},
                )
            )
    return found


def unmet(resources: Any, listed: str, where: str) -> list[tuple[str, str]]:
    """(what is wrong, what to do) of everything that is asked for and that no node has.

    Args:
        resources: of the job, as rules and profile state them.
        listed: lines of sinfo, see `read_nodes`.
        where: in which file jobs like this one are fitted to the cluster.
    """
    nodes = read_nodes(listed)
    if not nodes:
        return []
    partition, on_gpus = resources.get("slurm_partition"), bool(resources.get("gpu"))
    place = f"partition {partition!r}" if partition else "the default partition"
    found = []

    def lacks(lacking: bool, wrong: str, mend: str) -> None:
        if lacking:
            found.append((wrong, mend))

    asked, limits = _minutes(str(resources.get("runtime") or 0)), [node.minutes for node in nodes]
    limit = None if None in limits else max(limits)
    lacks(
        limit is not None and asked > limit,
        f"a time limit of {asked / 60:g} hours is asked for, and {place} allows {(limit or 0) / 60:g}",
        "lower runtime in the profile's profile.yaml",
    )
    count, model = resources.get("nodes") or 1, resources.get("gpu_model")
    gpus, most = math.ceil((resources.get("gpu") or 0) / count), max(_gpus(node, model) for node in nodes)
    known = sorted({f"{name or 'of no model'}" for node in nodes for name in node.gpus})
    lacks(
        gpus > 0 and not most,
        f"{place} has no GPU" + (f" of model {model!r} (it has: {', '.join(known) or 'none'})" if model else ""),
        f"correct {'gpu_model' if model and known else 'slurm_partition'} {where}",
    )
    lacks(
        gpus > most > 0,
        f"{gpus} GPUs a node are asked for, and no node of {place} has more than {most}",
        "spread the model over more nodes (gpus and nodes under models in the configuration)",
    )
    memory, largest = resources.get("mem_mb") or 0, max(node.memory for node in nodes)
    lacks(
        memory > largest,
        f"{memory} MB of memory a node are asked for, and no node of {place} has more than {largest}",
        f"lower {'mem_mb_per_node' if on_gpus else 'mem_mb'} {where}",
    )
    cpus, widest = (resources.get("cpus_per_gpu") or 0) * gpus, max(node.cpus for node in nodes)
    lacks(
        cpus > widest,
        f"{cpus} processors a node are asked for, and no node of {place} has more than {widest}",
        f"lower cpus_per_gpu {where}",
    )
    features = sorted(set().union(*(node.features for node in nodes)))
    missing = set(re.findall(r"[A-Za-z][\w.-]*", str(resources.get("constraint") or ""))) - set(features)
    lacks(
        bool(missing),
        f"no node of {place} has the feature {', '.join(sorted(missing))} (there are: {', '.join(features) or 'none'})",
        f"correct constraint {where}",
    )
    total = sum(node.number for node in nodes)
    lacks(
        count > total,
        f"{count} nodes are asked for, and {place} has {total}",
        "give the model fewer nodes (nodes and gpus under models in the configuration)",
    )
    return found


def _gpus(node: Nodes, model: str | None) -> int:
    return node.gpus.get(model, 0) if model else sum(node.gpus.values())


def _minutes(limit: str) -> float | None:
    """Minutes of a time limit as SLURM writes it, or as a profile states it; None for no limit."""
    from snakemake_executor_plugin_slurm.utils import parse_time_to_minutes
    from snakemake_interface_common.exceptions import WorkflowError

    if limit in ("infinite", "UNLIMITED", "n/a"):
        return None
    try:
        return float(parse_time_to_minutes(limit))
    except WorkflowError as error:
        raise UserError(f"{limit!r} is no time limit: {' '.join(str(error).split())}") from None
