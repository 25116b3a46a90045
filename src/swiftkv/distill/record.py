"""The record of a training: what it cost, how fast it was, and where the loss went."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from swiftkv.device import accelerator
from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.records import describe_spec, key_value_heads, measurement
from swiftkv.spec import SwiftKVSpec


class Machines:
    """What a training's steps ran on, all attempts counted."""

    def __init__(self, position: dict[str, Any], ranks: int) -> None:
        """Go on from a training state's position; in one without machines all was as it is now."""
        self._now = (ranks, accelerator())
        before = position.get("machines", [[*self._now, position["seconds"]]])
        self._seconds = {(count, name): seconds for count, name, seconds in before}

    def add(self, seconds: float) -> None:
        """Count a step."""
        self._seconds[self._now] = self._seconds.get(self._now, 0.0) + seconds

    @property
    def spent(self) -> list[list]:
        """By machine [ranks, name of their GPUs or None, seconds of its steps], as JSON can hold it."""
        return [[*machine, seconds] for machine, seconds in self._seconds.items()]


def gpus_of(machines: list[list]) -> tuple[float, str | None]:
    """How many GPUs a training ran on, a mean over the time if not always as many, and the names of all."""
    counts = {ranks if name else 0 for ranks, name, _ in machines}
    spent = sum(seconds for *_, seconds in machines)
    busy = sum(ranks * seconds for ranks, name, seconds in machines if name)
    names = sorted({name for _, name, _ in machines if name})
    return counts.pop() if len(counts) == 1 else busy / spent, "/".join(names) or None


def training_record(
    source: dict[str, Any],
    variant: str,
    spec: SwiftKVSpec | None,
    recipe: Recipe,
    rows: PackedRows,
    ranks: int,
    machines: list[list],
    attention: str,
    log: Path,
) -> dict[str, Any]:
    """A measurement "training"; its numbers come from the loss log, so a rerun after the last step gives the same.

    The result has seconds and hours of the optimizer steps alone, over all resumes; tokens that counted in the loss;
    steps; the first and last step's loss; tokens a second, and a GPU and second; GPUs and their names. GPUs are 0 on a
    processor, and where attempts had different numbers the mean over the time, so that hours x GPUs are GPU-hours.

    Args:
        source: the model's source.json.
        ranks: processes of the last attempt.
        machines: `Machines.spent` of all attempts.
        attention: name of the attention function that ran.
        log: CSV of the losses.
    """
    with log.open(newline="") as file:
        steps = list(csv.DictReader(file))
    first, last = steps[0], steps[-1]
    seconds, tokens = float(last["seconds"]), int(last["tokens"])
    gpus, names = gpus_of(machines)
    return measurement(
        "training",
        model=source,
        variant=variant,
        weights="trained",
        spec=describe_spec(spec, key_value_heads(source["config"])),
        settings=dict(recipe) | {"ranks": ranks, "rows": rows.rows, "rows_tokens": rows.description["tokens"]},
        result={
            "seconds": seconds,
            "hours": seconds / 3600,
            "tokens": tokens,
            "steps": int(last["step"]),
            "loss_first": float(first["loss"]),
            "loss_last": float(last["loss"]),
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_per_gpu": tokens / seconds / gpus if gpus else None,
            "gpus": gpus,
            "accelerator": names,
            "attention": attention,
        },
        seconds=seconds,
        data=rows.description,
    )
