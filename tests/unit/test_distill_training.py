"""Whole trainings as users start them: resume, ranks, ZeRO-3, stored teacher states, bad input."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import DistillationStep
from swiftkv.distill.trainer import Loop
from swiftkv.models import load_swiftkv
from swiftkv.spec import SwiftKVSpec
from tests.conftest import tiny_teacher
from tests.unit.distill_helpers import (
    GOLDEN,
    RECIPE,
    SCRIPTS,
    SPEC,
    command,
    environment,
    losses,
    make_inputs,
    run,
    train,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    """The training every other one is compared with."""
    folder = tmp_path_factory.mktemp("finished")
    train(inputs, folder)
    return folder


def log(folder) -> list[dict[str, float]]:
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def tensors(folder) -> dict[str, torch.Tensor]:
    return load_swiftkv(folder / "checkpoint", torch.float32).state_dict()


def test_training_is_plain_adamw_on_the_plain_loss(inputs, finished):
    """Losses within 1e-5 of a loop written out with torch alone."""
    recipe = Recipe.from_dict(RECIPE)
    rows = PackedRows(inputs / "packed.safetensors")
    step = DistillationStep(tiny_teacher(), SwiftKVSpec(**SPEC), recipe)
    trained = list(step.student.swiftkv_parameters().values())
    optimizer = torch.optim.AdamW(trained, weight_decay=recipe.weight_decay)
    total = recipe.total_steps(rows.rows)
    order = Loop(None, step, recipe, rows, None, total, 1, 0, 2)
    expected = []
    for number in range(total):
        batch = rows[order.row_numbers(number)]
        weights = batch.pop("loss_mask")
        loss = step(weights=weights / weights.sum(), **batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, recipe.gradient_clipping)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(number, total)
        optimizer.step()
        expected.append(loss.item())
    assert [row["loss"] for row in log(finished)] == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.8 * expected[0]
    saved = tensors(finished)
    for name, parameter in step.student.named_parameters():
        torch.testing.assert_close(saved[name], parameter, rtol=0, atol=2e-4)


def test_losses_are_the_golden_ones(finished):
    """Within 1e-4 of those recorded in tests/golden: float32 sums may differ by processor, the training may not."""
    golden = json.loads((GOLDEN / "distillation_losses.json").read_text())
    assert [row["loss"] for row in log(finished)] == pytest.approx(golden["losses"], rel=1e-4)


def test_log_and_order(inputs, finished):
    rows = log(finished)
    count = PackedRows(inputs / "packed.safetensors").rows
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) == 4 * count // 4
    order = Loop(None, None, Recipe.from_dict(RECIPE), PackedRows(inputs / "packed.safetensors"), None, 1, 1, 0, 2)
    sequence = [number for step in range(len(rows)) for number in order.row_numbers(step)]
    assert sorted(sequence[:count]) == list(range(count)) and sequence[:count] != sequence[count : 2 * count]


def test_killed_twice_and_resumed_the_losses_are_the_same_bits(inputs, finished, tmp_path):
    total = len(log(finished))
    for rows_before_the_kill in (5, 8):
        process = subprocess.Popen(command(inputs, tmp_path), env=environment(), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            logs = list(tmp_path.glob("state/*/log.csv"))
            if logs and len(logs[0].read_text().splitlines()) > rows_before_the_kill:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "log.csv").exists()
    said = train(inputs, tmp_path)
    assert "continuing after step" in said
    assert len(losses(tmp_path / "log.csv")) == total
    assert losses(tmp_path / "log.csv") == losses(finished / "log.csv")
    one, other = tensors(finished), tensors(tmp_path)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_lost_outputs_of_a_finished_training_are_only_saved_again(inputs, finished, tmp_path):
    import shutil

    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path)
    total = len(log(finished))
    assert f"continuing after step {total} of {total}" in said and "training" not in said
    assert (tmp_path / "log.csv").read_bytes() == (finished / "log.csv").read_bytes()
    assert all(torch.equal(a, b) for a, b in zip(tensors(tmp_path).values(), tensors(finished).values(), strict=True))


def test_state_of_another_recipe_is_neither_used_nor_lost(inputs, finished, tmp_path):
    import shutil

    shutil.copytree(finished / "state", tmp_path / "state")
    said = train(inputs, tmp_path, recipe={"learning_rate": 2e-3, "max_steps": 2})
    assert "training from the start" in said and len(log(tmp_path)) == 2
    assert len(list((tmp_path / "state").glob("*/state.json"))) == 2


def test_two_ranks_equal_one(inputs, finished, tmp_path):
    """Losses within 1e-6, weights within 1e-6: only the order of sums differs."""
    train(inputs, tmp_path, ranks=2)
    one, two = ([row["loss"] for row in log(folder)] for folder in (finished, tmp_path))
    assert two == pytest.approx(one, abs=1e-6)
    expected = tensors(finished)
    for name, tensor in tensors(tmp_path).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_zero_3_equals_zero_2(inputs, finished, tmp_path, ranks):
    train(inputs, tmp_path, recipe={"zero_stage": 3, "gradient_checkpointing": ranks == 2}, ranks=ranks)
    assert [row["loss"] for row in log(tmp_path)] == pytest.approx([row["loss"] for row in log(finished)], abs=1e-5)
    expected, found = tensors(finished), tensors(tmp_path)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_teacher_states_are_what_online_computes(inputs, tmp_path, dtype):
    import shutil

    for name in ("source.json", "packed.safetensors"):
        shutil.copy(inputs / name, tmp_path)
    recipe = {"dtype": dtype, "max_steps": 4}
    train(tmp_path, tmp_path / "online", recipe=recipe)
    words = {
        "--model-source": tmp_path / "source.json",
        "--recipe": json.dumps(RECIPE | recipe),
        "--data": tmp_path / "packed.safetensors",
        "--output": tmp_path / "states.safetensors",
    }
    words = [str(word) for pair in words.items() for word in pair]
    made = run([sys.executable, str(SCRIPTS / "teacher_states.py"), *words, "--layers", "4", "2", "3"])
    assert made.returncode == 0, made.stderr
    train(tmp_path, tmp_path / "stored", recipe=recipe | {"teacher_states": "stored"})
    assert losses(tmp_path / "stored" / "log.csv") == losses(tmp_path / "online" / "log.csv")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipe": {"teacher_states": "stored"}}, "no file with them"),
        ({"recipe": {"max_length": 128}}, "rows of 64 tokens"),
        ({"recipe": {"batch_size": 3}}, "not a multiple"),
        ({"spec": SPEC | {"num_key_value_layers": 7}}, "7"),
        ({"spec": SPEC | {"num_hidden_layers": 8}}, "8 layers"),
    ],
)
def test_bad_input_is_one_sentence(inputs, tmp_path, changes, said):
    done = run(command(inputs, tmp_path, **changes))
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ") and said in done.stderr
    assert not (tmp_path / "checkpoint").exists() and not (tmp_path / "log.csv").exists()


def test_damaged_training_state_is_named(inputs, finished, tmp_path):
    import shutil

    shutil.copytree(finished / "state", tmp_path / "state")
    (states,) = tmp_path.glob("state/*/step-*/*optim_states.pt")
    states.write_bytes(states.read_bytes()[:1000])
    done = run(command(inputs, tmp_path))
    assert done.returncode != 0 and "Traceback" not in done.stderr and "cannot be read" in done.stderr


def test_no_compiler_is_needed(inputs, tmp_path):
    """DeepSpeed would compile an operation for processors; nothing here asks it to."""
    words = command(inputs, tmp_path, recipe={"max_steps": 1})
    done = run(words, PATH="", CXX="/nonexistent", TORCH_EXTENSIONS_DIR=str(tmp_path / "compiled"))
    assert done.returncode == 0, done.stderr


def test_pack_program(inputs, tmp_path):
    chat = {"id": "0", "source": "x", "messages": [{"role": "user", "content": "w1 w2 " * 8}]}
    words = {
        "--model-source": inputs / "source.json",
        "--recipe": json.dumps(RECIPE),
        "--data": tmp_path / "chats.jsonl",
        "--output": tmp_path / "packed.safetensors",
    }
    words = [sys.executable, str(SCRIPTS / "pack.py"), *(str(word) for pair in words.items() for word in pair)]
    (tmp_path / "chats.jsonl").write_text((json.dumps(chat) + "\n") * 20)
    done = run(words)
    assert done.returncode == 0 and "20 chats, 360 tokens in 7 rows" in done.stderr, done.stderr
    assert PackedRows(tmp_path / "packed.safetensors").rows == 7
    (tmp_path / "packed.safetensors").unlink()
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat) + "\nnot json\n")
    done = run(words)
    assert done.returncode != 0 and "line 2" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]
