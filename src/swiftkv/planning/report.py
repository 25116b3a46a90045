"""A plan in words and tables."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from swiftkv.planning.disk import WHAT, Download
from swiftkv.planning.estimate import SURE, UNKNOWN
from swiftkv.planning.plan import HOUR, Cost, Plan

GIGA = 10**9


def report(plan: Plan) -> str:
    """All that a plan says, as printed."""
    if not any(job.rule != "all" for job in plan.jobs):
        return "Nothing is left to do."
    parts = [_summary(plan), _by_rule(plan), _by_artifact(plan), _disk(plan), _downloads(plan), _sureness(plan)]
    if plan.profile.cores is None:
        parts.insert(2, _too_long(plan))
    return "\n\n".join([*parts, _assumptions(plan)])


def _summary(plan: Plan) -> str:
    total, profile = plan.total, plan.profile
    if profile.cores is None:
        jobs = f"{total.cluster_jobs} cluster jobs and {total.local_jobs} small ones beside Snakemake"
        where = f"{_limit(profile.jobs)} jobs in the queue at once"
    else:
        jobs = f"{total.local_jobs} jobs"
        where = f"{profile.cores} cores"
    limits = {name: f"{amount} {name}" for name, amount in profile.resources.items()}
    if "mem_mb" in limits:
        limits["mem_mb"] = f"{profile.resources['mem_mb'] / 1000:.1f} GB of memory"
    lines = [
        f"Profile {profile.folder.name}: {jobs}",
        f"  GPU-hours   {_hours(total.gpu_hours)}" + (f", up to {total.gpus} GPUs a job" if total.gpus else ""),
        f"  wall time   at least {_duration(total.wall_seconds)}, with {', '.join([where, *limits.values()])}",
        f"  disk        {_gigabytes(total.disk)} GB, {_gigabytes(total.downloaded)} GB of it downloads",
    ]
    if unknown := Counter(estimate.why for estimate in plan.estimates if estimate.sure == UNKNOWN):
        lines += [f"  not counted: {count} jobs, as {why}" for why, count in unknown.items()]
    if optional := _optional(plan):
        lines.append(
            f"  scores of {', '.join(optional)} are counted as if the hub gave the questions, which are optional"
        )
    return "\n".join(lines)


def _optional(plan: Plan) -> list[str]:
    asked = {Path(path).stem for job in plan.jobs if job.rule.startswith("score") for path in job.outputs}
    tasks = plan.config["tasks"]
    return [name for name in tasks if name in asked and tasks[name].get("source", {}).get("optional")]


def _too_long(plan: Plan) -> str:
    """Jobs that an attempt's time limit cuts; a training goes on in the next attempt, all others start again."""
    rows = [
        {"longer than its time limit": " ".join([job.rule, *job.wildcards.values()]), "takes": _duration(estimate.seconds),
         "first attempt's limit": _duration(60 * job.resources["runtime"])}
        for job, estimate in zip(plan.jobs, plan.estimates, strict=True)
        if plan.profile.cores is None and estimate.seconds > 60 * job.resources.get("runtime", sys.maxsize)
    ]  # fmt: skip
    return _printed(pd.DataFrame(rows)) if rows else "No job is longer than the time limit of its first attempt."


def _by_rule(plan: Plan) -> str:
    rows: dict[str, dict[str, Any]] = {}
    for job, estimate in zip(plan.jobs, plan.estimates, strict=True):
        if job.rule == "all":
            continue
        row = rows.setdefault(job.rule, {"jobs": 0, "seconds": 0.0, "longest": 0.0, "gpu": 0.0, "sure": Counter()})
        row["jobs"] += 1
        row["seconds"] += estimate.seconds
        row["longest"] = max(row["longest"], estimate.seconds)
        row["gpu"] += estimate.seconds * job.gpus / HOUR
        row["sure"][estimate.sure] += 1
    here = {job.rule for job in plan.jobs if job.local or plan.profile.cores is not None}
    table = pd.DataFrame(
        {
            "rule": list(rows),
            "jobs": [row["jobs"] for row in rows.values()],
            "runs": ["here" if rule in here else "cluster" for rule in rows],
            "GPU-hours": [_hours(row["gpu"]) for row in rows.values()],
            "one takes up to": [_duration(row["longest"]) for row in rows.values()],
            "all, one by one": [_duration(row["seconds"]) for row in rows.values()],
            "how sure": [
                ", ".join(f"{row['sure'][name]} {name}" for name in SURE if row["sure"][name]) for row in rows.values()
            ],
        }
    )
    return "By rule\n" + _printed(table)


def _by_artifact(plan: Plan) -> str:
    gated = _gated(plan)

    def row(name: str, cost: Cost) -> dict[str, Any]:
        return {
            "artifact": name,
            "jobs": cost.cluster_jobs + cost.local_jobs,
            "on the cluster": cost.cluster_jobs,
            "GPU-hours": _hours(cost.gpu_hours),
            "wall time": _duration(cost.wall_seconds),
            "disk, GB": _gigabytes(cost.disk),
            "downloads, GB": _gigabytes(cost.downloaded),
            "licenses": " ".join(str(number) for hub, number in gated.items() if hub in _hubs(cost)) or "-",
        }

    if not plan.artifacts:
        return "No artifact is asked for."
    rows = [row(name, cost) for name, cost in plan.artifacts.items()] + [row("all of it", plan.total)]
    return (
        "By artifact, each as if made alone; what several share counts once in all of it; licenses by number, see below\n"
        + _printed(pd.DataFrame(rows))
    )


def _disk(plan: Plan) -> str:
    sizes = {"downloads": plan.total.downloaded, **plan.total.written}
    table = pd.DataFrame([{"disk": what, "GB": _gigabytes(sizes[what])} for what in WHAT if sizes.get(what)])
    return _printed(table) if len(table) else "Nothing is written."


def _downloads(plan: Plan) -> str:
    found = plan.total.downloads
    if not found:
        return "Nothing is downloaded."
    known, gated = [item for item in found if not _unnamed(item)], _gated(plan)
    table = pd.DataFrame(
        {
            "download": [item.hub for item in known],
            "what": [item.what for item in known],
            "GB": ["not stated here" if item.bytes is None else _gigabytes(item.bytes) for item in known],
            "license": [
                f"{gated[item.hub]}: accept it at https://huggingface.co/{item.hub}" if item.gated else "not gated"
                for item in known
            ],
        }
    )
    text = "Downloads, once each\n" + _printed(table)
    if unnamed := [item.hub for item in found if _unnamed(item)]:
        text += f"\nand the questions of {', '.join(unnamed)} from where lm-eval has them"
    if any(item.gated for item in found):
        text += "\nGated sources also need HF_TOKEN, or `hf auth login`."
    return text


def _hubs(cost: Cost) -> set[str]:
    return {item.hub for item in cost.downloads if item.gated}


def _gated(plan: Plan) -> dict[str, int]:
    """A number for each gated source, by which the table of artifacts names them."""
    return {hub: number for number, hub in enumerate(sorted(_hubs(plan.total)), 1)}


def _unnamed(item: Download) -> bool:
    return "/" not in item.hub


def _sureness(plan: Plan) -> str:
    counts = Counter(
        estimate.sure for job, estimate in zip(plan.jobs, plan.estimates, strict=True) if job.rule != "all"
    )
    table = pd.DataFrame(
        [
            {
                "how sure": sure,
                "jobs": counts[sure],
                "GPU-hours": _hours(plan.total.gpu_seconds[sure] / HOUR),
                "which means": meaning,
            }
            for sure, meaning in SURE.items()
            if counts[sure]
        ]
    )
    return _printed(table)


def _assumptions(plan: Plan) -> str:
    kinds = {"host"} | {"gpu" if job.gpus else "cpu" for job in plan.jobs if "gpu" in job.resources}
    rows = []
    for kind in ("host", "gpu", "cpu"):
        section = plan.config["planning"][kind]
        for name, assumed in section.items() if kind in kinds else []:
            if name != "name":
                rows.append((f"{kind}.{name}", assumed))
    mixes = {plan.config["recipes"][job.wildcards["recipe"]]["data"] for job in plan.jobs if "recipe" in job.wildcards}
    mixes |= {job.wildcards["data"] for job in plan.jobs if "data" in job.wildcards}
    for mix, entry in plan.config["planning"]["data"].items():
        rows += [(f"data.{mix}.{name}", assumed) for name, assumed in entry.items() if mix in mixes]
    table = pd.DataFrame(
        [
            {"assumed": name, "value": f"{assumed['value']:g}", "is": assumed["sure"], "namely": assumed["why"]}
            for name, assumed in rows
        ]
    )
    return "Assumptions (planning in config.yaml)\n" + _printed(table)


def _printed(table: pd.DataFrame) -> str:
    numbers = ("jobs", "on the cluster", "GPU-hours", "GB", "disk, GB", "downloads, GB", "value")
    aligned = ["right" if name in numbers else "left" for name in table]
    return table.to_markdown(index=False, tablefmt="simple", disable_numparse=True, colalign=aligned)


def _limit(jobs: int | None) -> str:
    return "any number of" if jobs in (None, sys.maxsize) else str(jobs)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def _duration(seconds: float) -> str:
    if seconds >= 2 * HOUR:
        return f"{seconds / HOUR:,.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _gigabytes(size: int) -> str:
    return f"{size / GIGA:,.0f}" if size >= 10 * GIGA else f"{size / GIGA:.1f}"
