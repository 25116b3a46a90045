"""Distillation of a model with FP8 weights: only the new projections move, and they are quantized on saving."""

import pytest
import torch
from tests.conftest import refused
from tests.quantized import quantize
from tests.unit.distill_helpers import RECIPE, SPEC, losses, stored, train

from swiftkv.device import compute_dtype
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.trainer import train as run_training
from swiftkv.io import read_json, write_json
from swiftkv.models import load_swiftkv
from swiftkv.spec import SwiftKVSpec

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def inputs(inputs):
    (inputs / "model").rename(inputs / "plain")
    quantize(inputs / "plain", inputs / "model", inputs / "rounded")
    config = read_json(inputs / "model/config.json")
    write_json(inputs / "source.json", read_json(inputs / "source.json") | {"config": config})
    return inputs


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train(inputs, folder, recipe={"max_steps": 6})
    return folder


def test_only_the_new_parameters_move_and_are_saved_in_fp8(inputs, finished):
    source, saved = (stored(folder) for folder in (inputs / "model", finished / "checkpoint"))
    for name, tensor in source.items():
        assert saved[name].dtype == tensor.dtype and torch.equal(saved[name].float(), tensor.float()), name
    new = {name for name in saved if name not in source}
    weights = {name for name in new if name.endswith("_proj_swiftkv.weight")}
    assert len(weights) == 7 and new == weights | {f"{name}_scale" for name in weights} | {"model.norm_swiftkv.weight"}
    assert {saved[name].dtype for name in weights} == {FP8}
    configs = [read_json(folder / "config.json") for folder in (inputs / "model", finished / "checkpoint")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    values = losses(finished)
    assert len(values) == 6 and sum(values[3:]) < sum(values[:3])


def test_zero_3_divides_the_bits_and_gives_them_back(inputs, finished, tmp_path):
    changes = {"max_steps": 6, "zero_stage": 3, "dtype": "bfloat16", "gradient_checkpointing": True}
    train(inputs, tmp_path, recipe=changes, ranks=2)
    expected, found = (stored(folder / "checkpoint") for folder in (finished, tmp_path))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert "swiftkv" in name or torch.equal(tensor.float(), expected[name].to(tensor.dtype).float()), name
    assert losses(tmp_path) == pytest.approx(losses(finished), abs=0.05)  # 16-bit activations against 32-bit ones
    assert load_swiftkv(tmp_path / "checkpoint").dtype == compute_dtype()


@pytest.mark.parametrize("changes, spec", [({"train": "upper_layers"}, SPEC), ({"train": "all", "loss": "lm"}, None)])
def test_fp8_weights_are_not_trained(inputs, tmp_path, changes, spec):
    rewiring, recipe = None if spec is None else SwiftKVSpec(**spec), Recipe.from_dict(RECIPE | changes)
    outputs = [tmp_path / name for name in ("state", "checkpoint", "log")]
    with refused("has FP8 weights, which cannot be trained"):
        run_training(inputs / "model", rewiring, recipe, inputs / "packed.safetensors", *outputs)
    assert not list(tmp_path.iterdir())
