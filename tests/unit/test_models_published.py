"""The published checkpoints: their tensors are those of our models, and weights of their form load and come back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.published import CHECKPOINTS, TINY, random_like, tensors, write
from transformers import AutoConfig, AutoModelForCausalLM

from swiftkv.io import read_json
from swiftkv.models import load_swiftkv, save_swiftkv
from swiftkv.spec import SwiftKVSpec


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_our_model_of_their_configuration_has_their_tensors(name, tmp_path):
    published = CHECKPOINTS[name]
    (tmp_path / "config.json").write_text(json.dumps(published.config))
    config = AutoConfig.from_pretrained(tmp_path)
    layers = published.config["num_hidden_layers"]
    assert SwiftKVSpec.from_config(config) == SwiftKVSpec(layers, layers // 2)
    with torch.device("meta"):
        ours = {name: tuple(t.shape) for name, t in AutoModelForCausalLM.from_config(config).state_dict().items()}
    assert ours == {
        name: tuple(t.shape)
        for name, t in tensors(published.config, published.dtype).items()
        if not name.endswith("_scale")
    }


@pytest.mark.parametrize(
    ("name", "teacher_qkv", "group"), [*((name, True, 1) for name in CHECKPOINTS), ("8B", True, 2), ("8B", False, 2)]
)
def test_tiny_weights_of_that_form_load_and_come_back_bit_for_bit(name, teacher_qkv, group, tmp_path, tokens):
    published = CHECKPOINTS[name]
    config = published.config | TINY | {"key_value_group_size": group}
    weights = random_like(tensors(config, published.dtype, teacher_qkv))
    folder = write(tmp_path / "published", config, weights, files=3)
    model = load_swiftkv(folder, published.dtype)
    with torch.no_grad():
        assert model(tokens).logits.isfinite().all()
    save_swiftkv(model, tmp_path / "ours")
    saved, ours = load_file(tmp_path / "ours" / "model.safetensors"), read_json(tmp_path / "ours" / "config.json")
    assert saved.keys() == weights.keys()
    for tensor, weight in weights.items():
        # We keep scales in float32, the same numbers.
        assert saved[tensor].dtype == weight.dtype or tensor.endswith("_scale")
        assert torch.equal(saved[tensor].float(), weight.float()), tensor
    same = ("architectures", "model_type", "swiftkv", "num_key_value_layers", "key_value_group_size")
    assert {key: ours[key] for key in same} == {key: config[key] for key in same}
    assert not [key for key in ours if key.startswith("swiftkv_")]
