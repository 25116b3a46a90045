"""SwiftKVSpec: groups, reductions and what cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from swiftkv.spec import SwiftKVSpec


def test_groups_cover_every_upper_layer_once():
    spec = SwiftKVSpec(8, 3, 2)
    assert spec.groups == (range(3, 5), range(5, 7), range(7, 8))
    assert spec.owners == (3, 5, 7)
    assert [spec.owner(layer) for layer in range(8)] == [0, 1, 2, 3, 3, 5, 5, 7]


@pytest.mark.parametrize(
    ("spec", "prefill", "cache"),
    [  # paper, Sec. 4 and Appendix C.1: Llama-3.1-8B has 32 layers and 8 KV heads
        (SwiftKVSpec(32, 16), 0.5, 0.0),
        (SwiftKVSpec(32, 16, 4), 0.5, 0.375),
        (SwiftKVSpec(32, 16, 16), 0.5, 0.46875),
        (SwiftKVSpec(32, 16, 1, 2), 0.5, 0.375),
        (SwiftKVSpec(32, 32), 0.0, 0.0),
        (SwiftKVSpec(32, 12, 8), 0.625, 0.53125),  # the last group is of 4
        (SwiftKVSpec(32, 16, 16, 32), 0.5, 0.375),
        (SwiftKVSpec(32, 12, 4), 0.625, 0.46875),
    ],
)
def test_reductions(spec, prefill, cache):
    assert spec.prefill_reduction == prefill
    assert spec.kv_cache_reduction(8) == cache


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "num_hidden_layers is 0"),
        ((8, 0), "num_key_value_layers is 0, but must lie between 1 and the model's 8 layers"),
        ((8, 9), "num_key_value_layers is 9"),
        ((8, 4, 0), "key_value_group_size is 0, but must lie between 1 and 4"),
        ((8, 8, 2), "key_value_group_size is 2, but must lie between 1 and 1"),
        ((8, 4, 1, 0), "num_key_value_heads is 0"),
        ((8, 4.0), "num_key_value_layers is 4.0, but must be a whole number"),
        ((8, True), "num_key_value_layers is True"),
        ((6, 6, 1, None, True), "early_exit needs a layer to skip"),
        ((6, 2, 2, None, False, True), "own_key_values needs"),
        ((6, 2, 1, None, True, True), "own_key_values needs"),
    ],
)
def test_impossible(arguments, message):
    with pytest.raises(ValueError, match="^" + message) as caught:
        SwiftKVSpec(*arguments)
    assert "\n" not in str(caught.value)


def test_from_config():
    config = SimpleNamespace(num_hidden_layers=8, num_key_value_layers=4, key_value_group_size=2)
    assert SwiftKVSpec.from_config(config) == SwiftKVSpec(8, 4, 2)
    config.swiftkv_num_key_value_heads = 2
    assert SwiftKVSpec.from_config(config) == SwiftKVSpec(8, 4, 2, 2)
