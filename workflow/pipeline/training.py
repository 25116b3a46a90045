"""Jobs of training: packed rows, teacher states, moments of fitted starts, and distillation with its record."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.card import write_card
from pipeline.records import describe_spec, measurement
from pipeline.sources import read_source
from swiftkv.distill import packing, teacher
from swiftkv.distill.recipe import FitSettings, ForwardSettings, PackingSettings, Recipe, WeightSettings
from swiftkv.distill.trainer import train
from swiftkv.io import write_json
from swiftkv.spec import SwiftKVSpec


def pack(model_source: Path, data: Path, recipe: PackingSettings, output: Path) -> None:
    """Tokenize chats with the model's chat template and pack them into rows (`packing.pack_chats`).

    Args:
        model_source: the model's source.json.
        data: chats, one JSON object a line.
        recipe: seed and lengths of the rows.
        output: safetensors file of the packed rows.
    """
    source = read_source(model_source)
    origin = {key: source.get(key) for key in ("name", "id", "revision", "resolved")}
    packing.pack_chats(Path(source["path"]), data, recipe, output, origin)


def teacher_states(
    model_source: Path, data: Path, recipe: ForwardSettings, layers: Sequence[int], output: Path
) -> None:
    """Compute the teacher's states on the packed rows (`teacher.write_teacher_states`).

    Args:
        model_source: the model's source.json.
        data: packed rows.
        recipe: decides micro-batch size and number format.
        layers: layers whose entering residual stream is stored.
        output: safetensors file of the states.
    """
    teacher.write_teacher_states(Path(read_source(model_source)["path"]), data, recipe, layers, output)


def moments(model_source: Path, data: Path, recipe: FitSettings, layers: Sequence[int], output: Path) -> None:
    """Compute the regressions that fitted starts are made from (`teacher.write_moments`).

    Args:
        model_source: the model's source.json.
        data: packed rows.
        recipe: decides tokens, ridge, micro-batch size and number format.
        layers: every l that a fitted start may have.
        output: safetensors file of the regressions.
    """
    teacher.write_moments(Path(read_source(model_source)["path"]), data, recipe, layers, output)


def distill(
    model_source: Path,
    variant: str,
    spec: SwiftKVSpec | None,
    recipe: WeightSettings,
    runtime_settings: dict[str, Any],
    data: Path,
    state_dir: Path,
    checkpoint: Path,
    loss_log: Path,
    record: Path,
    teacher_states: Path | None = None,
    moments: Path | None = None,
    minutes: float | None = None,
) -> None:
    """Train one variant of a model (`trainer.train`), and write the record of its cost and the checkpoint's model card.

    The record's result has seconds and hours of the optimizer steps alone, over all resumes; tokens that counted in the loss;
    steps; the first and last step's loss; tokens a second, and a GPU and second; GPUs and their names. GPUs are 0 on a
    processor, and where attempts had different numbers the mean over the time, so that hours x GPUs are GPU-hours.

    Args:
        model_source: the model's source.json; its `path` is an ordinary checkpoint with tokenizer.
        variant: name of the variant.
        spec: the rewiring; null trains the model as it is.
        recipe: settings that change the trained weights.
        runtime_settings: the rest of the recipe: memory, speed and when states are saved.
        data: packed rows.
        state_dir: folder for resumable state.
        checkpoint: folder of the trained checkpoint.
        loss_log: CSV of the losses.
        record: JSON of the cost.
        teacher_states: stored states of the teacher, for recipes that use them.
        moments: regressions, for recipes with a fitted start.
        minutes: time limit of this process; it saves its state and stops before. Without it there is no end.
    """
    source = read_source(model_source)
    # By a relative path, so that links to it are relative and results can be moved.
    model, whole = Path(os.path.relpath(source["path"])), Recipe(**dict(recipe), **runtime_settings)
    done = train(model, spec, whole, data, state_dir, checkpoint, loss_log, teacher_states, moments, minutes)
    if done is None:  # not the first rank
        return
    # Its numbers come from the loss log, so that a rerun after the last step gives the same.
    with loss_log.open(newline="", encoding="utf-8") as file:
        steps = list(csv.DictReader(file))
    first, last = steps[0], steps[-1]
    seconds, tokens = float(last["seconds"]), int(last["tokens"])
    gpus, names = gpus_used(done.machines)
    known = measurement(
        "training",
        model=source,
        variant=variant,
        weights="trained",
        spec=describe_spec(spec, source["config"]),
        settings=dict(whole.on_this_device())
        | {"ranks": done.ranks, "rows": done.rows.rows, "rows_tokens": done.rows.description["tokens"]},
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
            "attention": done.attention,
        },
        seconds=seconds,
        data=done.rows.description,
    )
    write_json(record, known)
    write_card(record, checkpoint / "README.md")


def gpus_used(machines: list[list]) -> tuple[float, str | None]:
    """Return the number of GPUs of a training, a mean over the time if it changed, and the names of all."""
    counts = {ranks if name else 0 for ranks, name, _ in machines}
    spent = sum(seconds for *_, seconds in machines)
    busy = sum(ranks * seconds for ranks, name, seconds in machines if name)
    names = sorted({name for _, name, _ in machines if name})
    return counts.pop() if len(counts) == 1 else busy / spent, "/".join(names) or None
