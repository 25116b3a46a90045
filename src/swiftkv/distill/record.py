"""The record of a training: what it cost, how fast it was, and where the loss went."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import torch

from swiftkv.distill.device import compute_device
from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.records import describe_spec, key_value_heads, measurement
from swiftkv.spec import SwiftKVSpec


def training_record(
    source: dict[str, Any],
    variant: str,
    spec: SwiftKVSpec | None,
    recipe: Recipe,
    rows: PackedRows,
    ranks: int,
    attention: str,
    log: Path,
) -> dict[str, Any]:
    """A measurement "training"; its numbers come from the loss log, so a rerun after the last step gives the same.

    The result has seconds and hours of the optimizer steps alone, over all resumes; tokens that counted in the loss;
    steps; the first and last step's loss; tokens a second, and a GPU and second; GPUs (0 on a processor) and their name.

    Args:
        source: the model's source.json.
        ranks: processes that trained, each with one GPU if there are any.
        attention: name of the attention function that ran.
        log: CSV of the losses.
    """
    with log.open(newline="") as file:
        steps = list(csv.DictReader(file))
    first, last = steps[0], steps[-1]
    seconds, tokens = float(last["seconds"]), int(last["tokens"])
    gpus = ranks if compute_device() == "cuda" else 0
    fields = None if spec is None else dataclasses.asdict(spec)
    return measurement(
        "training",
        model=source,
        variant=variant,
        weights="trained",
        spec=describe_spec(fields, key_value_heads(source["config"])),
        settings=dataclasses.asdict(recipe)
        | {"ranks": ranks, "rows": rows.rows, "rows_tokens": rows.description["tokens"]},
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
            "accelerator": torch.cuda.get_device_name() if gpus else None,
            "attention": attention,
        },
        seconds=seconds,
        data=rows.description,
    )
