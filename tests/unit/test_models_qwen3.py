"""What is Qwen3's own: queries and keys are normalised by head, in the student by norms of its own."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from swiftkv.errors import UserError
from swiftkv.models import load_swiftkv, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec
from swiftkv.start.fit import fitted_values
from tests.conftest import tiny_swiftkv, tiny_teacher

SPEC = SwiftKVSpec(6, 2, 3)


def test_names_and_start_values():
    teacher = tiny_teacher("qwen3")
    added = rewire(teacher, SPEC).swiftkv_parameters()
    norms = {name: value for name, value in added.items() if "_norm_swiftkv" in name}
    assert {name for name in norms if ".k_norm" in name} == {
        f"model.layers.{layer}.self_attn.k_norm_swiftkv.weight" for layer in (2, 5)
    }
    layers = teacher.model.layers
    for layer in range(2, 6):
        query = norms[f"model.layers.{layer}.self_attn.q_norm_swiftkv.weight"]
        assert torch.equal(query, layers[layer].self_attn.q_norm.weight)
    mean = sum(layers[layer].self_attn.k_norm.weight for layer in (2, 3, 4)) / 3
    torch.testing.assert_close(norms["model.layers.2.self_attn.k_norm_swiftkv.weight"], mean, rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_norms_matter(tokens):
    model = tiny_swiftkv("qwen3", 2, 3)
    before = model(tokens).logits
    for name in ("model.layers.3.self_attn.q_norm_swiftkv.weight", "model.layers.2.self_attn.k_norm_swiftkv.weight"):
        parameter = model.get_parameter(name)
        parameter[0] *= 3
        assert not torch.allclose(model(tokens).logits, before, atol=1e-3)
        parameter[0] /= 3


@torch.no_grad()
def test_without_the_teacher_its_norms_are_left_out_too(tmp_path, tokens):
    model = tiny_swiftkv("qwen3", 2, 3)
    save_swiftkv(model, tmp_path / "model", keep_teacher_qkv=False)
    names = set(load_file(tmp_path / "model/model.safetensors"))
    assert not [
        name for name in names if ".layers.3.self_attn.q_norm.w" in name or ".layers.3.self_attn.k_norm.w" in name
    ]
    loaded = load_swiftkv(tmp_path / "model", torch.float32)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_a_fitted_start_is_refused():
    with pytest.raises(UserError, match="the keys of qwen3 are normalised, so no linear fit gives them"):
        fitted_values(tiny_teacher("qwen3"), SPEC, None, 0.0)
