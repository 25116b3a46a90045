"""A tiny model on disk, packed rows for it, and the training program as a subprocess."""

import csv
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import byte_tokenizer, tiny_teacher
from tests.programs import ROOT, environment

from swiftkv.distill.packing import PackedRows, Sample, pack, write_packed
from swiftkv.distill.recipe import WeightSettings
from swiftkv.distill.trainer import Loop
from swiftkv.io import tensor_shapes, write_json
from swiftkv.models import load_any

STAGE = ("-m", "pipeline.stages")
GOLDEN = ROOT / "tests/golden/distillation_losses.json"
SPEC = {"num_hidden_layers": 6, "num_key_value_layers": 3, "key_value_group_size": 2}
RECIPE = {
    "data": "tiny", "loss": "distillation", "temperature": 2.0, "logits_weight": 1.0, "logits_tokens": "all",
    "hidden_state_weight": 0.0,
    "hidden_state_layer": -2, "train": "qkv", "train_norm": True, "start": "copied",
    "start_tokens": 1000, "start_ridge": 1e-4, "teacher_states": "online", "learning_rate": 1e-3,
    "adam_beta2": 0.999, "weight_decay": 0.05, "warmup_ratio": 0.05, "schedule": "linear", "epochs": 4, "max_steps": None,
    "training_share": 1.0, "batch_size": 4, "micro_batch_size": 2, "max_length": 64, "gradient_clipping": 1.0,
    "zero_stage": 2, "dtype": "float32", "attention": "auto", "seed": 7, "checkpoint_every": 3, "checkpoint_minutes": 20,
}  # fmt: skip
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "deepspeed", "pipeline.stages", "swiftkv.distill.trainer"])


def random_samples(count, longest, seed=0):
    """The second half of each is the assistant's."""
    random = np.random.default_rng(seed)
    ids = [random.integers(3, 128, random.integers(2, longest + 1)).astype(np.int32) for _ in range(count)]
    return [Sample(one, (np.arange(len(one)) >= len(one) // 2).astype(np.uint8)) for one in ids]


def make_inputs(folder, architecture="llama"):
    """model/, source.json and packed.safetensors in `folder`; transformers refuses to write the model's generation settings."""
    teacher = tiny_teacher(architecture)
    teacher.save_pretrained(folder / "model")
    write_json(folder / "model/generation_config.json", {"do_sample": False, "temperature": 0.6})
    byte_tokenizer(letters=125).save_pretrained(folder / "model")
    config = json.loads(teacher.config.to_json_string())
    place = str(folder / "model")
    source = {"name": "tiny", "title": "Tiny", "kind": "local", "id": "tiny", "path": place, "config": config}
    write_json(folder / "source.json", source)
    arrays, counts = pack(random_samples(40, 40), 64, 7, 0)
    write_packed(folder / "packed.safetensors", arrays, counts)


def settings(part, changes=None):
    """Those settings of a recipe that a class has, as JSON."""
    return json.dumps({name: value for name, value in (RECIPE | (changes or {})).items() if name in part.model_fields})


def command(
    inputs,
    output,
    recipe=None,
    spec=SPEC,
    ranks=1,
    moments=False,
):
    arguments = {
        "--model-source": inputs / "source.json",
        "--variant": "v",
        "--spec": json.dumps(spec),
        "--recipe": settings(WeightSettings, recipe),
        "--runtime-settings": json.dumps(
            {k: v for k, v in (RECIPE | (recipe or {})).items() if k not in WeightSettings.model_fields}
        ),
        "--data": inputs / "packed.safetensors",
        "--state-dir": output / "state",
        "--checkpoint": output / "checkpoint",
        "--loss-log": output / "log.csv",
        "--record": output / "record.json",
    }
    if (inputs / "states.safetensors").exists():
        arguments["--teacher-states"] = inputs / "states.safetensors"
    if moments:
        arguments["--moments"] = inputs / "moments.safetensors"
    return stage("distill", arguments, ranks)


def packed_stage(name, inputs, part, output, layers, **more):
    """A stage that reads packed rows, for some layers; `more` are changes of the recipe."""
    options = {
        "--model-source": inputs / "source.json",
        "--recipe": settings(part, more),
        "--data": inputs / "packed.safetensors",
        "--output": output,
    }
    return [*stage(name, options), "--layers", *map(str, layers)]


def stage(name, options, ranks=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return [sys.executable, *launcher, *STAGE, name, *(str(word) for pair in options.items() for word in pair)]


def run(words, **changes):
    """Run a program to its end. A stage that needs no environment of its own is forked from a process that has imported
    its libraries, which takes seconds."""
    if changes or tuple(words[1:3]) != STAGE:
        return subprocess.run(words, capture_output=True, text=True, env=environment(**changes), timeout=300)
    with tempfile.NamedTemporaryFile("r") as printed, tempfile.NamedTemporaryFile("r") as said:
        process = FORKS.Process(target=run_stage, args=(words[3:], printed.name, said.name))
        process.start()
        process.join(300)
        process.kill()
        process.join()
        return subprocess.CompletedProcess(words, process.exitcode, printed.read(), said.read())


def run_stage(words, printed, said):
    """Be `python -m pipeline.stages` with some words; stdout and stderr go to files."""
    for number, name in ((1, printed), (2, said)):
        os.dup2(os.open(name, os.O_WRONLY), number)
    sys.argv = ["pipeline.stages", *words]
    runpy.run_module("pipeline.stages", run_name="__main__")


def train(inputs, output, **arguments):
    done = run(command(inputs, output, **arguments))
    assert done.returncode == 0, done.stderr
    return done.stderr


def log(folder):
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def losses(folder):
    return [row["loss"] for row in log(folder)]


def stored(checkpoint):
    """All tensors of a checkpoint's files, whichever these are."""
    files = {file for file, _ in tensor_shapes(checkpoint).values()}
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def tensors(folder):
    return load_any(folder / "checkpoint", torch.float32).state_dict()


def assert_alike(one, other, loss=0.0, weight=0.0):
    """Two finished trainings differ by so much at most; by nothing, they are the same bits."""
    for row, expected in zip(log(one), log(other), strict=True):
        for name in ("step", "loss", "logits_loss", "early_exit_loss"):
            assert row[name] == pytest.approx(expected[name], rel=0, abs=loss)
    torch.testing.assert_close(tensors(one), tensors(other), rtol=0, atol=weight)


def plain_adamw(inputs, recipe, trained, steps, parts_of):
    """Optimizer steps by torch alone on the rows [4, 64] that the trainer would read, on float32 copies of what is trained.

    Gradients of the parts of a batch's loss are summed in float32. The losses, and the optimizer.
    """
    rows, trained = PackedRows(inputs / "packed.safetensors"), list(trained)
    masters = [parameter.detach().float().requires_grad_() for parameter in trained]
    optimizer = torch.optim.AdamW(masters, betas=(0.9, recipe.adam_beta2), weight_decay=recipe.weight_decay)
    order, found = Loop(None, recipe, rows, None, steps), []
    for number in range(steps):
        optimizer.zero_grad()
        found.append(0.0)
        for loss in parts_of(rows[order.row_numbers(number)]):
            loss.backward()
            found[-1] += loss.item()
            for parameter, master in zip(trained, masters, strict=True):
                master.grad = parameter.grad.float() + (0 if master.grad is None else master.grad)
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters, recipe.gradient_clipping)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(number, steps)
        optimizer.step()
        for parameter, master in zip(trained, masters, strict=True):
            parameter.data.copy_(master)
    return found, optimizer


def mean_loss(step, size=4):
    """Parts of a step's loss over the counted positions of a batch, of so many rows each."""

    def parts(batch):
        positions = batch["loss_mask"].sum()
        for first in range(0, 4, size):
            rows = {name: part[first : first + size] for name, part in batch.items()}
            yield step(weights=rows.pop("loss_mask") / positions, **rows)[0]

    return parts
