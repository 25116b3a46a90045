"""Rewiring: start values, shared weights and what does not fit."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import randomise_biases
from transformers import GPT2Config, GPT2LMHeadModel

from swiftkv.errors import UserError
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

L = 6


def expected_names(spec: SwiftKVSpec, bias: bool, norms: bool) -> set[str]:
    kinds = ("weight", "bias") if bias else ("weight",)
    names = {"model.norm_swiftkv.weight"}
    for layer in range(spec.num_key_value_layers, spec.num_hidden_layers):
        projections = ("q", "k", "v") if layer in spec.owners else ("q",)
        names |= {f"model.layers.{layer}.self_attn.{p}_proj_swiftkv.{kind}" for p in projections for kind in kinds}
        names |= {f"model.layers.{layer}.self_attn.{p}_norm_swiftkv.weight" for p in projections if norms and p != "v"}
    return names


@pytest.mark.parametrize("group", [1, 3])
def test_start_values(grouped_query, group, tiny_teacher):
    teacher = tiny_teacher(grouped_query)
    randomise_biases(teacher)
    spec = SwiftKVSpec(L, 2, group)
    added = rewire(teacher, spec).swiftkv_parameters()
    assert added.keys() == expected_names(spec, bias=grouped_query == "qwen2", norms=grouped_query == "qwen3")
    original = teacher.state_dict()
    for name, value in added.items():
        if name == "model.norm_swiftkv.weight":
            expected = original["model.layers.2.input_layernorm.weight"]
        elif ".q_" in name:
            expected = original[name.replace("_swiftkv", "")]
        else:
            first = int(name.split(".")[2])
            members = range(first, min(first + group, L))
            expected = sum(
                original[name.replace("_swiftkv", "").replace(f".{first}.", f".{member}.")] for member in members
            ) / len(members)
        torch.testing.assert_close(value.detach(), expected, atol=1e-6, rtol=0)


@torch.no_grad()
def test_rewiring_the_last_layer_changes_nothing(architecture, tiny_teacher, tokens):
    # Its keys and values come from its own input anyway, so the start values must give the teacher.
    teacher = tiny_teacher(architecture)
    assert torch.equal(rewire(teacher, SwiftKVSpec(L, L - 1))(tokens).logits, teacher(tokens).logits)


@torch.no_grad()
def test_repeated_heads_change_nothing(grouped_query, tiny_teacher, tokens):
    teacher = tiny_teacher(grouped_query)
    model = rewire(teacher, SwiftKVSpec(L, 2, 2, 8))
    assert model.model.layers[2].self_attn.k_proj_swiftkv.weight.shape == (64, 64)
    expected = rewire(teacher, SwiftKVSpec(L, 2, 2))(tokens).logits
    torch.testing.assert_close(model(tokens).logits, expected, atol=2e-5, rtol=1e-5)


def test_merged_heads_are_means(tiny_teacher):
    teacher = tiny_teacher("qwen2")
    randomise_biases(teacher)
    added = rewire(teacher, SwiftKVSpec(L, 5, 1, 2)).swiftkv_parameters()
    weight, bias = (teacher.get_parameter(f"model.layers.5.self_attn.k_proj.{kind}") for kind in ("weight", "bias"))
    name = "model.layers.5.self_attn.k_proj_swiftkv."
    torch.testing.assert_close(added[name + "weight"][:8], (weight[:8] + weight[8:16]) / 2)
    torch.testing.assert_close(added[name + "bias"][8:], (bias[16:24] + bias[24:]) / 2)


@pytest.mark.parametrize("tie", [True, False])
def test_weights_are_shared_with_the_teacher(architecture, tie, tiny_teacher):
    teacher = tiny_teacher(architecture, tie_word_embeddings=tie)
    model = rewire(teacher, SwiftKVSpec(L, 3, 2))
    for name, parameter in teacher.named_parameters():
        assert model.get_parameter(name) is parameter
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tie
    added = model.swiftkv_parameters()
    assert {id(p) for p in model.parameters()} == {id(p) for p in (*teacher.parameters(), *added.values())}
    storages = {p.untyped_storage().data_ptr() for p in teacher.parameters()}
    assert not any(p.untyped_storage().data_ptr() in storages for p in added.values())
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_teacher_is_left_as_it_was(tiny_teacher, tokens):
    teacher = tiny_teacher()
    before = teacher(tokens).logits
    rewire(teacher, SwiftKVSpec(L, 2, 3))(tokens)
    assert teacher.config.model_type == "llama" and not hasattr(teacher.config, "swiftkv")
    assert torch.equal(teacher(tokens).logits, before)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (SwiftKVSpec(8, 4), {}, "8 layers, but the model has 6"),
        (SwiftKVSpec(6, 3, 1, 3), {}, "3 SwiftKV key/value heads"),
        (SwiftKVSpec(6, 3, 1, 16), {}, "16 SwiftKV key/value heads"),
        (
            SwiftKVSpec(6, 3, 1, 6),
            dict(num_attention_heads=12, hidden_size=96),
            "6 SwiftKV key/value heads .* 4 evenly",
        ),
    ],
)
def test_spec_that_does_not_fit(spec, shape, message, tiny_teacher):
    with pytest.raises(UserError, match=message):
        rewire(tiny_teacher(**shape), spec)


def test_unsupported_architecture():
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(UserError, match="'gpt2'.*llama"):
        rewire(model, SwiftKVSpec(2, 1))
