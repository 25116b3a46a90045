"""What a job asks for and no node of its partition has: SLURM only says that there is something."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from swiftkv.errors import UserError

FORMAT = "%m|%c|%l|%D|%G|%f"  # of sinfo, for `read_nodes`
Cause = tuple[str, str]  # what is wrong, what to do


class Nodes(NamedTuple):
    """Nodes that are alike.

    Attributes:
        memory: MB a node.
        cpus: a node.
        minutes: the partition's time limit; infinite without one.
        number: how many there are.
        gpus: model -> how many a node; the model is "" where SLURM is not told.
        features: as constraints name them.
    """

    memory: int
    cpus: int
    minutes: float
    number: int
    gpus: dict[str, int]
    features: frozenset[str]

    def count(self, model: str | None) -> int:
        """GPUs a node, of one model if given."""
        return self.gpus.get(model, 0) if model else sum(self.gpus.values())


def read_nodes(text: str) -> list[Nodes]:
    """The nodes in lines of `sinfo --exact` in `FORMAT`; other lines are passed over."""
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
                    features=frozenset(features.split(",")) - {"(null)"},
                )
            )
    return found


def too_long(resources: Any, nodes: Sequence[Nodes]) -> list[Cause]:
    """Whether a job asks for more time than its partition allows; a quality of service may allow more.

    Args:
        resources: what the job asks for, as rules and profile state them.
        nodes: the nodes of its partition.
    """
    asked = _minutes(str(resources.get("runtime") or 0))
    limit = max((node.minutes for node in nodes), default=math.inf)
    if asked <= limit or resources.get("qos"):
        return []
    return [
        (
            f"{asked / 60:g} hours are asked for, and {_partition(resources)} allows {limit / 60:g}",
            "lower runtime in the profile's profile.yaml",
        )
    ]


def unmet(resources: Any, nodes: Sequence[Nodes]) -> list[Cause]:
    """Everything that a job asks for and that its partition does not have.

    Args:
        resources: what the job asks for, as rules and profile state them.
        nodes: the nodes of its partition; nothing is said where they are not known.
    """
    if not nodes:
        return []
    where, mend = _partition(resources), place(resources)
    count, model = resources.get("nodes") or 1, resources.get("gpu_model")
    gpus = math.ceil((resources.get("gpu") or 0) / count)
    memory, cpus = resources.get("mem_mb") or 0, (resources.get("cpus_per_gpu") or 0) * gpus
    wanted = frozenset(re.findall(r"[A-Za-z][\w.-]*", str(resources.get("constraint") or "")))
    most, largest, widest = (
        max(values) for values in zip(*((n.count(model), n.memory, n.cpus) for n in nodes), strict=True)
    )
    features = frozenset().union(*(node.features for node in nodes))
    models = ", ".join(sorted({name or "a model it does not name" for node in nodes for name in node.gpus}))
    only = f" of model {model!r}, only {models or 'nodes without'}" if model else ""
    fit = sum(
        node.number
        for node in nodes
        if node.count(model) >= gpus and node.memory >= memory and node.cpus >= cpus and wanted <= node.features
    )

    def short(amount: int, what: str, there: int) -> str:
        return f"{amount} {what} a node are asked for, and no node of {where} has more than {there}"

    key = "gpu_model" if model and models else "slurm_partition"
    lacks = [
        (
            gpus and not most,
            f"{where} has no GPU{only}",
            f"correct {key} {mend}",
        ),
        (
            gpus > most > 0,
            short(gpus, "GPUs", most),
            "spread the model over more nodes (gpus and nodes under models in the configuration)",
        ),
        (
            memory > largest,
            short(memory, "MB of memory", largest),
            f"lower {'mem_mb_per_node' if gpus else 'mem_mb'} {mend}",
        ),
        (cpus > widest, short(cpus, "processors", widest), f"lower cpus_per_gpu {mend}"),
        (
            not wanted <= features,
            f"no node of {where} has the feature {', '.join(sorted(wanted - features))}, only "
            f"{', '.join(sorted(features)) or 'nodes without any'}",
            f"correct constraint {mend}",
        ),
    ]
    found = too_long(resources, nodes) + [(wrong, mend) for lacking, wrong, mend in lacks if lacking]
    if found or "|" in str(resources.get("constraint")) or count <= fit:
        return found
    return [
        (
            f"{count} nodes are asked for with {gpus} GPUs, {memory} MB and {max(cpus, 1)} processors each, "
            f"and {where} has {fit}",
            f"ask for less {mend}, or give the model fewer nodes",
        )
    ]


def place(resources: Any) -> str:
    """In which file jobs like this one are fitted to the cluster."""
    return "under gpu_jobs in the profile's site.yaml" if resources.get("gpu") else "in the profile's profile.yaml"


def _partition(resources: Any) -> str:
    return f"partition {resources.get('slurm_partition')!r}" if resources.get("slurm_partition") else "the partition"


def _minutes(limit: str) -> float:
    """Minutes of a time limit as SLURM writes it, or as a profile states it."""
    from snakemake.exceptions import WorkflowError
    from snakemake_executor_plugin_slurm.utils import parse_time_to_minutes

    if limit in ("infinite", "UNLIMITED", "n/a"):
        return math.inf
    try:
        return float(parse_time_to_minutes(limit))
    except WorkflowError as error:
        raise UserError(f"{limit!r} is no time limit: {' '.join(str(error).split())}") from None
