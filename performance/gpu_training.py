"""Quality over training tokens: train the small model on a GPU with more tokens than a processor can, to be scored on one later.

    python performance/gpu_training.py prepare results/gpu-tokens           # rows and recipes; needs the packaged chats
    python performance/check_gpu.py --only 7                                # trains, and writes the trained tensors
    python performance/gpu_training.py restore BASE CHECKPOINT PART PART    # makes a checkpoint of them

Stopping and resuming is checked here too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from gpu_models import ROOT, Outcome, Sizes, half, make_model, make_recipe, make_rows
from safetensors.torch import load_file

from pipeline.run.jobs import read_config, read_profile
from pipeline.sources import resolve_model
from pipeline.sources.chats import build_corpus, draw_heldout
from swiftkv.distill.packing import PackedRows, pack_chats
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.teacher import write_moments
from swiftkv.distill.trainer import Loop, train
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, load_tokenizer, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec
from swiftkv.tensor_file import open_tensors, save

PREPARED = ROOT / "results/gpu-tokens"
RECIPES = ("tuned", "distillation")
PART = 15 * 2**20  # bytes of a file of trained tensors, at most


def prepare(output: Path) -> None:
    """Pack all chats of the local scale once, and write the recipes, the spec of half the layers, and the model's source."""
    config = read_config(read_profile("local"))
    model, heldout = config.models[config.roles["small"]], config.heldout
    source = model.source.model_dump(exclude_unset=True)
    resolve_model("small", model.title, source, output / "source.json")
    recipes = {name: config.recipes[name].model_copy(update={"max_steps": None}) for name in RECIPES}
    data = config.data[recipes["tuned"].data].model_dump(exclude_unset=True)
    held_out = config.data[heldout.data].model_dump(exclude_unset=True)
    held, chats, record = output / "heldout.jsonl", output / "chats.jsonl", output / "data.json"
    draw_heldout(held_out["sources"], heldout.chats, heldout.seed, held, record)
    build_corpus(data["sources"], data["seed"], held, chats, record)
    pack_chats(output / "base", chats, recipes["tuned"], output / "rows.safetensors")
    spec = SwiftKVSpec(model.num_hidden_layers, model.num_key_value_layers["50"])
    fields = {name: recipe.model_dump() for name, recipe in recipes.items()}
    write_json(output / "plan.json", {"title": model.title, "source": source, "spec": spec.fields, "recipes": fields})


def in_process(function: Callable[..., None], *arguments: Any) -> Any:
    """Start a training in a process of its own: a process can join DeepSpeed's ranks once."""
    child = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    child.start()
    return child


def wait(child: Any) -> None:
    """Wait for a process.

    Raises:
        UserError: it failed.
    """
    child.join()
    if child.exitcode:
        raise UserError("a training failed; its log says why")


def resume(sizes: Sizes, folder: Path) -> Outcome:
    """Stop a training in the middle, resume it, and compare its losses with those of one that ran undisturbed."""
    config = sizes.small | {"num_hidden_layers": 4}
    make_model(folder / "model", config, None)
    make_rows(folder / "rows.safetensors", sizes.short, sizes.small["vocab_size"], 24)

    def start(*arguments: Any) -> Any:
        return in_process(train_once, folder, half(config), sizes.short, *arguments)

    whole = start("whole", None)
    for stop in (3, None):
        wait(start("parts", stop))
    wait(whole)
    columns = {
        name: [",".join(line.split(",")[:7]) for line in (folder / name / "log.csv").read_text().splitlines()]
        for name in ("whole", "parts")
    }
    return judge_resume(columns)


def judge_resume(logs: dict[str, list[str]]) -> Outcome:
    """Judge that both trainings logged the same losses, to the last digit."""
    differing = sum(one != other for one, other in zip(logs["whole"], logs["parts"], strict=True))
    return differing == 0, f"{len(logs['whole']) - 1} steps, {differing} with another loss after the stop", logs


def train_once(folder: Path, spec: SwiftKVSpec, length: int, output: str, stop: int | None) -> None:
    """Train the model of `folder`; end the process after `stop` steps."""
    run = Loop.run

    def stopping(loop: Loop, number: int) -> dict[str, float]:
        if number == stop:
            os._exit(0)
        return run(loop, number)

    Loop.run = stopping  # pyrefly: ignore [bad-assignment]
    place = folder / output
    train(folder / "model", spec, make_recipe(length), folder / "rows.safetensors", place / "state", place / "checkpoint",
          place / "log.csv")  # fmt: skip


def more_tokens(sizes: Sizes, folder: Path) -> Outcome:
    """Train with each recipe for so many tokens, in passes over the rows, the recipes at once; write the trained tensors after
    each training."""
    if not PREPARED.joinpath("plan.json").exists():
        raise UserError(f"there are no rows to train on: python performance/gpu_training.py prepare {PREPARED}")
    plan = read_json(PREPARED / "plan.json")
    resolve_model("small", plan["title"], plan["source"], folder / "source.json")
    found, fields = {}, {"batch_size": sizes.rows, "micro_batch_size": sizes.rows, "teacher_states": "online",
                         "checkpoint_every": 10**6, "checkpoint_minutes": 1e6}  # fmt: skip
    for tokens in sizes.tokens:
        names = {f"{name}-{tokens}": recipe | fields for name, recipe in plan["recipes"].items()}
        spec = SwiftKVSpec(**plan["spec"])
        for child in [in_process(train_for, folder, name, tokens, spec, recipe) for name, recipe in names.items()]:
            wait(child)
        for name in names:
            log = pd.read_csv(folder / name / "log.csv")
            columns = {"tokens": "tokens", "seconds": "seconds", "losses": "loss"}
            found[name] = {key: log[column].tolist() for key, column in columns.items()}
    return judge_tokens(found, judged=torch.cuda.is_available())


def train_for(folder: Path, name: str, tokens: int, spec: SwiftKVSpec, fields: dict[str, Any]) -> None:
    """Train the model of `folder` for about so many tokens of the prepared rows."""
    place, data = folder / name, PREPARED / "rows.safetensors"
    rows, moments = PackedRows(data), place / "moments.safetensors"
    steps = round(tokens * rows.rows / rows.counted(list(range(rows.rows))) / fields["batch_size"])
    fields |= {"max_steps": steps, "start_tokens": min(tokens, fields["start_tokens"])}
    recipe = Recipe.from_dict(fields)
    if recipe.start == "fitted":
        write_moments(folder / "base", data, recipe, [spec.num_key_value_layers], moments)
    train(folder / "base", spec, recipe, data, place / "state", place / "model", place / "log.csv", None, moments)
    write_parts(place / "model/model.safetensors", spec, folder, name)


def judge_tokens(found: dict[str, Any], *, judged: bool = True) -> Outcome:
    """Judge that each training's loss fell, over tenths of its steps."""
    words, passed = [], True
    for name, one in found.items():
        tenth = max(1, len(one["losses"]) // 10)
        first, last = (sum(part) / tenth for part in (one["losses"][:tenth], one["losses"][-tenth:]))
        passed &= last < first or not judged
        words.append(
            f"{name}: {one['tokens'][-1]} tokens in {one['seconds'][-1]:.0f} s, loss {first:.4f} to {last:.4f}"
        )
    return passed, ", ".join(words), found


def write_parts(checkpoint: Path, spec: SwiftKVSpec, folder: Path, name: str) -> None:
    """Write the tensors that SwiftKV adds to files of at most `PART` bytes, trained-NAME-0.safetensors and on."""
    parts, size = [{}], 0
    for key, tensor in load_file(checkpoint).items():
        if "_swiftkv." in key:
            size += tensor.nbytes
            if size > PART:
                parts, size = [*parts, {}], tensor.nbytes
            parts[-1][key] = tensor
    for number, part in enumerate(parts):
        save(folder / f"trained-{name}-{number}.safetensors", part, spec.fields)


def restore(base: Path, output: Path, parts: list[Path]) -> None:
    """Make the SwiftKV checkpoint of a base model and the files of `write_parts`.

    Raises:
        UserError: a tensor is missing.
    """
    student = rewire(load_base(base, torch.bfloat16), SwiftKVSpec(**open_tensors(parts[0], ())[1]))
    trained = {key: tensor for part in parts for key, tensor in load_file(part).items()}
    if missing := sorted(student.swiftkv_parameters().keys() ^ trained.keys()):
        raise UserError(f"the parts are not all of one training of this model: {missing[0]} is on one side only")
    student.load_state_dict(trained, strict=False)
    save_swiftkv(student, output, tokenizer=load_tokenizer(base))


if __name__ == "__main__":
    words = [Path(word) for word in sys.argv[2:]]
    prepare(*words) if sys.argv[1] == "prepare" else restore(words[0], words[1], words[2:])
