"""Whole trainings as users start them: ranks, ZeRO-3, stored teacher states, bad input."""

import json
import shutil

import pytest
import torch
from tests.conftest import CHATML, tiny_teacher
from tests.unit.distill_helpers import (
    GOLDEN,
    RECIPE,
    SPEC,
    assert_alike,
    command,
    log,
    losses,
    mean_loss,
    packed_stage,
    plain_adamw,
    run,
    stored,
    tensors,
    train,
)
from torch.testing import assert_close

from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import ForwardSettings, Recipe
from swiftkv.distill.step import DistillationStep, next_tokens
from swiftkv.io import read_json, write_json
from swiftkv.models import load_any, load_tokenizer
from swiftkv.spec import SwiftKVSpec


def test_training_is_plain_adamw_on_the_plain_loss(inputs, finished):
    """Losses within 1e-5 of a loop written out with torch alone."""
    recipe = Recipe.from_dict(RECIPE)
    step = DistillationStep(tiny_teacher(), SwiftKVSpec(**SPEC), recipe)
    steps = recipe.total_steps(PackedRows(inputs / "packed.safetensors").rows)
    expected, _ = plain_adamw(inputs, recipe, step.student.swiftkv_parameters().values(), steps, mean_loss(step))
    assert losses(finished) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < 0.8 * expected[0]
    saved = tensors(finished)
    for name, parameter in step.student.named_parameters():
        assert_close(saved[name], parameter, rtol=0, atol=2e-4)


def test_losses_are_the_golden_ones(finished):
    """Within 1e-4 of those recorded in tests/golden: float32 sums may differ by processor, the training may not."""
    assert losses(finished) == pytest.approx(read_json(GOLDEN)["losses"], rel=1e-4)


def test_record(inputs, finished):
    record, rows = read_json(finished / "record.json"), log(finished)
    packed = PackedRows(inputs / "packed.safetensors")
    assert (record["measure"], record["variant"], record["weights"]) == ("training", "v", "trained")
    assert record["spec"]["prefill_reduction"] == 0.5 and RECIPE.items() <= record["settings"].items()
    settings, result = record["settings"], record["result"]
    assert (settings["ranks"], settings["rows"]) == (1, packed.rows)
    assert settings["rows_tokens"] == packed.counted(list(range(packed.rows)))
    assert [result[name] for name in ("steps", "loss_first", "loss_last", "tokens", "seconds")] == [
        len(rows), rows[0]["loss"], rows[-1]["loss"], rows[-1]["tokens"], rows[-1]["seconds"],
    ]  # fmt: skip
    assert ([row["step"] for row in rows], rows[-1]["epoch"]) == ([*range(1, len(rows) + 1)], RECIPE["epochs"])
    assert str(inputs) not in json.dumps(record)


def test_an_early_exit_head_is_trained_and_saved(inputs, tmp_path):
    train(inputs, tmp_path, spec=SPEC | {"early_exit": True}, recipe={"max_steps": 6})
    rows, saved = log(tmp_path), load_any(tmp_path / "checkpoint", torch.float32)
    for row in rows:
        assert row["loss"] == pytest.approx(row["logits_loss"] + row["early_exit_loss"], rel=1e-9)
    assert rows[-1]["early_exit_loss"] < rows[0]["early_exit_loss"]
    assert saved.spec.early_exit and torch.equal(saved.lm_head.weight, tiny_teacher().lm_head.weight)
    assert not torch.equal(saved.early_exit_head_swiftkv.weight, saved.lm_head.weight)


FINE_TUNING = {"train": "all", "loss": "lm", "learning_rate": 1e-4, "max_steps": 6}


@pytest.fixture(scope="module")
def fine_tuned(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fine_tuned")
    train(inputs, folder, recipe=FINE_TUNING, spec=None)
    return folder


def test_fine_tuning_is_plain_adamw_on_the_whole_model(inputs, fine_tuned):
    model = tiny_teacher().train()

    def parts(batch):
        targets, has_target = next_tokens(batch["input_ids"], batch["position_ids"])
        logits = model(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        counts = batch["loss_mask"].flatten() * has_target
        terms = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
        return [(terms * counts).sum() / counts.sum()]

    expected, _ = plain_adamw(inputs, Recipe.from_dict(RECIPE | FINE_TUNING), model.parameters(), 6, parts)
    assert losses(fine_tuned) == pytest.approx(expected, abs=1e-5)
    saved = load_any(fine_tuned / "checkpoint", torch.float32)
    assert type(saved) is type(model) and load_tokenizer(fine_tuned / "checkpoint").chat_template == CHATML
    assert saved.lm_head.weight is saved.model.embed_tokens.weight
    for name, parameter in model.named_parameters():
        assert_close(saved.get_parameter(name), parameter, rtol=0, atol=1e-4)
    assert read_json(fine_tuned / "record.json")["spec"] is None


def test_fine_tuning_with_zero_3_and_two_ranks(inputs, fine_tuned, tmp_path):
    train(inputs, tmp_path, recipe=FINE_TUNING | {"zero_stage": 3}, spec=None, ranks=2)
    assert_alike(tmp_path, fine_tuned, 1e-5, 1e-4)


AUTHORS = {"logits_tokens": "assistant", "hidden_state_weight": 1.0, "weight_decay": 0.0}


@pytest.mark.parametrize("changes", [AUTHORS | {"dtype": "bfloat16"}, AUTHORS | {"hidden_state_layer": -1}])
def test_stored_teacher_states_are_what_online_computes(inputs, tmp_path, changes):
    for name in ("source.json", "packed.safetensors"):
        shutil.copy(inputs / name, tmp_path)
    recipe = {"max_steps": 4} | changes
    train(tmp_path, tmp_path / "online", recipe=recipe)
    made = run(
        packed_stage("teacher_states", tmp_path, ForwardSettings, tmp_path / "states.safetensors", [5, 2, 3], **recipe)
    )
    assert made.returncode == 0, made.stderr
    train(tmp_path, tmp_path / "stored", recipe=recipe | {"teacher_states": "stored"})
    stored, online = (losses(tmp_path / folder) for folder in ("stored", "online"))
    model, ids = load_any(inputs / "model", torch.float32), torch.arange(128).view(2, 64)
    with torch.no_grad():
        place_counts = not torch.equal(model(ids.flip(0)).logits.flip(0), model(ids).logits)
    if (
        place_counts
    ):  # a processor with AVX2 rounds a row by its place in the micro-batch: 2^-24 an operation, 2^-8 in bfloat16
        assert stored == pytest.approx(online, rel=2**-8 if recipe.get("dtype") == "bfloat16" else 16 * 2**-24)
    else:
        assert stored == online


def test_auto_computes_in_float32_on_a_processor_without_bfloat16(inputs, finished, tmp_path):
    """Without a compiler: DeepSpeed would have one make an operation for processors, which nothing here asks it to."""
    absent = {"PATH": "", "CXX": "/nonexistent", "TORCH_EXTENSIONS_DIR": str(tmp_path / "compiled")}
    words = command(inputs, tmp_path, recipe={"dtype": "auto", "max_steps": 2})
    done = run(words, ATEN_CPU_CAPABILITY="avx2", **absent)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path)[0] == pytest.approx(losses(finished)[0], rel=1e-5)
    assert read_json(tmp_path / "record.json")["settings"]["dtype"] == "float32"
    # The checkpoint has the base's number format, whatever was computed in.
    saved, base = stored(tmp_path / "checkpoint"), stored(inputs / "model")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert all(torch.equal(saved[name], tensor) for name, tensor in base.items())


@pytest.mark.parametrize("train_what, shared", [("qkv", True), ("upper_layers", False)])
def test_only_projections_share_the_files_of_the_base(inputs, tmp_path, train_what, shared):
    """And the links are relative, so that results can be moved."""
    results = tmp_path / "results"
    shutil.copytree(inputs / "model", results / "models/base")
    shutil.copy(inputs / "packed.safetensors", results)
    write_json(results / "source.json", read_json(inputs / "source.json") | {"path": "models/base"})
    train(results, results / "here", recipe={"train": train_what, "max_steps": 2, "dtype": "auto"})
    links = [file.readlink() for file in (results / "here/checkpoint").iterdir() if file.is_symlink()]
    assert [str(link) for link in links] == ["../../models/base/model.safetensors"] * shared
    saved, base = stored(results / "here/checkpoint"), stored(inputs / "model")
    assert shared == all(torch.equal(saved[name].float(), tensor) for name, tensor in base.items())
    load_any(results.rename(tmp_path / "moved") / "here/checkpoint")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"recipe": {"teacher_states": "stored"}}, "no file with them"),
        ({"recipe": {"max_length": 128}}, "rows of 64 tokens"),
        ({"spec": SPEC | {"num_hidden_layers": 8}}, "8 layers"),
    ],
)
def test_bad_input_is_one_sentence(inputs, tmp_path, changes, said):
    done = run(command(inputs, tmp_path, **changes))
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ") and said in done.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name != "state"]
