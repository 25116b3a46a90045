"""A plan in words and tables."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from swiftkv.cost import GIGA
from swiftkv.planning.estimate import SURE, UNKNOWN
from swiftkv.planning.plan import HOUR, WRITTEN, Cost, Plan, duration
from swiftkv.predict.device import constants

MEMORY = ("weights", "optimizer", "activations", "working", "GB")
NUMBERS = (
    *MEMORY,
    "trainings",
    "GPUs",
    "jobs",
    "on the cluster",
    "GPU-hours",
    "disk, GB",
    "downloads, GB",
    "value",
)  # columns set to the right


def report(plan: Plan) -> str:
    """All that a plan says, as printed; the summary last, where it stays on the screen."""
    if not plan.jobs:
        return "Nothing is left to do."
    parts = [_assumptions(plan), _by_rule(plan), _by_artifact(plan), _disk(plan), _downloads(plan), _sureness(plan)]
    if plan.profile.cores is None:
        parts.insert(2, _too_long(plan))
    if plan.trainings:
        parts.insert(-3, _memory(plan))
    return "\n\n".join([*parts, _summary(plan)])


def _summary(plan: Plan) -> str:
    total, profile = plan.total, plan.profile
    if profile.cores is None:
        jobs = (
            f"{_count(total.cluster_jobs, 'cluster job')} and {_count(total.local_jobs, 'small one')} beside Snakemake"
        )
        where = f"{'any number of' if profile.jobs == sys.maxsize else profile.jobs} jobs in the queue at once"
    else:
        jobs, where = _count(total.local_jobs, "job"), _count(profile.cores or 0, "core")
    limits = {name: f"{amount} {name}" for name, amount in profile.resources.items()}
    if "mem_mb" in limits:
        limits["mem_mb"] = f"{profile.resources['mem_mb'] / 1000:.1f} GB of memory"
    least = "at least " if total.uncounted else ""
    gpus = f", up to {_count(total.gpus, 'GPU')} a job" if total.gpus else ""
    lines = [
        f"Profile {profile.folder.name}: {jobs}",
        f"  GPU-hours   {least}{_hours(total.gpu_hours)}{gpus}",
        f"  wall time   at least {duration(total.wall_seconds)}, with {', '.join([where, *limits.values()])}",
        f"  disk        {least}{gigabytes(total.disk)} GB, {gigabytes(total.downloaded)} GB of it downloads",
    ]
    if plan.trainings:
        lines.append(f"  GPU memory  {_fits(plan)}")
    if (shared := plan.shared).seconds:
        saved = f"{_hours(shared.gpu_hours)} GPU-hours" if shared.gpu_hours else duration(shared.seconds)
        starts = f"  engines     {shared.engines} for {_count(shared.jobs, 'serving measurement')}"
        if profile.cores is not None:
            lines.append(f"{starts}, which saves {saved} of starts")
        else:
            lines.append(f"{starts} would do: up to {saved} less, where jobs wait for each other in the queue")
    unknown = Counter(estimate.why for estimate in plan.estimates if estimate.sure == UNKNOWN)
    lines += [f"  not counted: {_count(count, 'job')}, as {why}" for why, count in unknown.items()]
    scored = {Path(path).stem for job in plan.jobs if job.rule.startswith("score") for path in job.outputs}
    tasks = plan.config.tasks
    if optional := [name for name in tasks if name in scored and getattr(tasks[name].source, "optional", False)]:
        lines += [f"  scores of {', '.join(optional)} are counted as if the hub gave the questions, which are optional"]
    return "\n".join(lines)


def _too_long(plan: Plan) -> str:
    """Jobs that an attempt's time limit cuts; a training goes on in the next attempt, all others start again."""
    rows = [
        {
            "longer than its time limit": " ".join([job.rule, *job.wildcards.values()]),
            "takes": duration(estimate.seconds),
            "first attempt's limit": duration(60 * job.resources["runtime"]),
        }
        for job, estimate in zip(plan.jobs, plan.estimates, strict=True)
        if estimate.seconds > 60 * job.resources.get("runtime", sys.maxsize)
    ]
    return _printed(rows) if rows else "No job is longer than the time limit of its first attempt."


def _memory(plan: Plan) -> str:
    """What a GPU holds in the largest training of each model."""
    rows = []
    for model in dict.fromkeys(training.model for training in plan.trainings):
        alike = [training for training in plan.trainings if training.model == model]
        largest = max(alike, key=lambda training: training.memory.peak if training.memory else 0)
        parts = largest.memory and vars(largest.memory) | {"GB": largest.memory.peak}
        rows.append(
            {"model": model, "trainings": len(alike), "the largest": largest.variant, "GPUs": largest.gpus}
            | {part: gigabytes(parts[part]) if parts else "?" for part in MEMORY}
            | {"": "?" if parts is None else "fits" if largest.fits else "does not fit"}
        )
    room = gigabytes(plan.trainings[0].room)
    return f"Memory of each GPU of a training at its peak, GB; {room} may be tensors\n" + _printed(rows)


def _fits(plan: Plan) -> str:
    """A sentence on the trainings' memory."""
    known = [(training.memory.peak, training) for training in plan.trainings if training.memory]
    unknown = {training.model: training.why for training in plan.trainings if not training.memory}
    said = [f"not counted for {model}, as {why}" for model, why in unknown.items()]
    if known:
        largest, room = max(peak for peak, _ in known), plan.trainings[0].room
        size = f"up to {gigabytes(largest)} GB a GPU in training, of {gigabytes(room)} that tensors may take"
        over = [f"{one.model} {one.variant} ({gigabytes(peak)} GB)" for peak, one in known if not one.fits]
        said.insert(0, f"{size}: " + (f"does not fit: {', '.join(over)}" if over else "fits"))
    return "; ".join(said)


def _by_rule(plan: Plan) -> str:
    rules: dict[str, list[int]] = {}
    for number, job in enumerate(plan.jobs):
        rules.setdefault(job.rule, []).append(number)
    rows = []
    for rule, numbers in rules.items():
        seconds, jobs = [plan.seconds[number] for number in numbers], [plan.jobs[number] for number in numbers]
        sure = Counter(plan.estimates[number].sure for number in numbers)
        gpu_seconds = sum(of_job * job.gpus for of_job, job in zip(seconds, jobs, strict=True))
        rows.append(
            {
                "rule": rule,
                "jobs": len(jobs),
                "runs": "here" if jobs[0].local or plan.profile.cores is not None else "cluster",
                "GPU-hours": _open(_hours(gpu_seconds / HOUR), gpu_seconds, sure[UNKNOWN]),
                "one takes up to": _open(duration(max(seconds)), max(seconds), sure[UNKNOWN]),
                "all, one by one": _open(duration(sum(seconds)), sum(seconds), sure[UNKNOWN]),
                "how sure": ", ".join(f"{sure[name]} {name}" for name in SURE if sure[name]),
            }
        )
    return "By rule\n" + _printed(rows)


def _by_artifact(plan: Plan) -> str:
    gated = _gated(plan)

    def row(name: str, cost: Cost) -> dict[str, Any]:
        return {
            "artifact": name,
            "jobs": cost.cluster_jobs + cost.local_jobs,
            "on the cluster": cost.cluster_jobs,
            "GPU-hours": _open(_hours(cost.gpu_hours), cost.gpu_hours, cost.uncounted),
            "wall time": _open(duration(cost.wall_seconds), cost.wall_seconds, cost.uncounted),
            "disk, GB": _open(gigabytes(cost.disk), cost.disk, cost.uncounted),
            "downloads, GB": gigabytes(cost.downloaded),
            "licenses": " ".join(str(number) for hub, number in gated.items() if hub in _hubs(cost)) or "-",
        }

    if not plan.artifacts:
        return "No artifact is asked for."
    rows = [row(name, cost) for name, cost in plan.artifacts.items()] + [row("all of it", plan.total)]
    return (
        "By artifact, each as if made alone; what several share counts once in all of it; licenses by number, see below\n"
        + _printed(rows)
    )


def _disk(plan: Plan) -> str:
    sizes = {"downloads": plan.total.downloaded} | {what: plan.total.written.get(what, 0) for what in WRITTEN}
    rows = [{"disk": what, "GB": gigabytes(size)} for what, size in sizes.items() if size]
    return _printed(rows) if rows else "Nothing is written."


def _downloads(plan: Plan) -> str:
    if not plan.total.downloads:
        return "Nothing is downloaded."
    gated = _gated(plan)
    rows = [
        {
            "download": re.sub(r"(://[^/]+/).*/", r"\1.../", item.hub),
            "what": item.what,
            "GB": "not stated here" if item.bytes is None else gigabytes(item.bytes),
            "license": f"{gated[item.hub]}: accept it at https://huggingface.co/{item.hub}"
            if item.gated
            else "not gated",
        }
        for item in plan.total.downloads
        if "/" in item.hub
    ]
    text = "Downloads, once each" + ("\n" + _printed(rows) if rows else "")
    if unnamed := [item.hub for item in plan.total.downloads if "/" not in item.hub]:
        text += f"\nand the questions of {', '.join(unnamed)} from where lm-eval has them"
    return text + ("\nGated sources also need HF_TOKEN, or `hf auth login`." if gated else "")


def _hubs(cost: Cost) -> set[str]:
    return {item.hub for item in cost.downloads if item.gated}


def _gated(plan: Plan) -> dict[str, int]:
    """A number for each gated source, by which the table of artifacts names them."""
    return {hub: number for number, hub in enumerate(sorted(_hubs(plan.total)), 1)}


def _sureness(plan: Plan) -> str:
    jobs = Counter(estimate.sure for estimate in plan.estimates)
    rows = [
        {
            "how sure": sure,
            "jobs": jobs[sure],
            "GPU-hours": "?" if sure == UNKNOWN else _hours(plan.total.gpu_seconds[sure] / HOUR),
            "which means": meaning,
        }
        for sure, meaning in SURE.items()
        if jobs[sure]
    ]
    return _printed(rows)


def _assumptions(plan: Plan) -> str:
    kinds = {"host"} | {"gpu" if job.gpus else "cpu" for job in plan.jobs if "gpu" in job.resources}
    mixes = {plan.config.recipes[job.wildcards["recipe"]].data for job in plan.jobs if "recipe" in job.wildcards}
    mixes |= {job.wildcards["data"] for job in plan.jobs if "data" in job.wildcards}
    planning = plan.config["planning"]
    sections = {kind: planning[kind] for kind in ("host", "gpu", "cpu") if kind in kinds}
    sections |= {f"{kind}.device": constants(planning[kind]["device"]) for kind in ("gpu", "cpu") if kind in kinds}
    sections |= {f"data.{mix}": entry for mix, entry in planning["data"].items() if mix in mixes}
    rows = [
        {
            "assumed": f"{section}.{name}",
            "value": f"{assumed['value']:g}",
            "is": assumed["sure"],
            "namely": assumed["why"],
        }
        for section, entries in sections.items()
        for name, assumed in entries.items()
        if name != "device"
    ]
    return "Assumptions (planning in config.yaml, resources/devices)\n" + _printed(rows)


def _printed(rows: Sequence[dict[str, Any]]) -> str:
    table = pd.DataFrame(rows)
    aligned = ["right" if name in NUMBERS else "left" for name in table]
    return table.to_markdown(index=False, tablefmt="simple", disable_numparse=True, colalign=aligned)


def _open(printed: str, value: float, uncounted: int) -> str:
    """A number as printed, and that it is not all where jobs are not counted."""
    return printed if not uncounted else f"{printed} + ?" if value else "?"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def gigabytes(size: int) -> str:
    """Bytes as gigabytes."""
    return f"{size / GIGA:,.0f}" if size >= 10 * GIGA else f"{size / GIGA:.1f}"
