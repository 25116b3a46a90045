"""Rewiring: the spec and what cannot be, start values and shared weights."""

import pytest
import torch
from tests.conftest import randomise_biases, refused, tiny_teacher
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

L = 6


@torch.no_grad()
def test_merged_heads_are_means_and_repeated_ones_change_nothing(grouped_query, tokens):
    teacher = tiny_teacher(grouped_query)
    randomise_biases(teacher)
    merged, own = rewire(teacher, SwiftKVSpec(L, 5, 1, 2)), teacher.model.layers[5].self_attn.k_proj
    found, original = merged.model.layers[5].self_attn.k_proj_swiftkv, dict(own.named_parameters())
    for kind, values in found.named_parameters():
        assert_close(values, original[kind].unflatten(0, (2, 2, 8)).mean(1).flatten(0, 1))
    model = rewire(teacher, SwiftKVSpec(L, 2, 2, 8))
    assert model.model.layers[2].self_attn.k_proj_swiftkv.weight.shape == (64, 64)
    expected = rewire(teacher, SwiftKVSpec(L, 2, 2))(tokens).logits
    assert_close(model(tokens).logits, expected, atol=2e-5, rtol=1e-5)


def test_unsupported_architecture():
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32))
    with refused("'gpt2'.*llama"):
        rewire(model, SwiftKVSpec(2, 1))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1), "num_hidden_layers is 0"),
        ((8, 0), "num_key_value_layers is 0, but must lie between 1 and the model's 8 layers"),
        ((8, 4, 0), "key_value_group_size is 0, but must lie between 1 and 4"),
        ((8, 8, 2), "key_value_group_size is 2, but must lie between 1 and 1"),
        ((8, 4, 1, 0), "num_key_value_heads is 0"),
        ((8, 4.0), "num_key_value_layers is 4.0, but must be a whole number"),
        ((6, 6, 1, None, True), "early_exit needs a layer to skip"),
        ((6, 2, 2, None, False, True), "own_key_values needs"),
        ((6, 2, 1, None, True, True), "own_key_values needs"),
    ],
)
def test_impossible(arguments, message):
    with pytest.raises(ValueError, match="^" + message) as caught:
        SwiftKVSpec(*arguments)
    assert "\n" not in str(caught.value)
