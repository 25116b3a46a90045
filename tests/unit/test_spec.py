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


def test_all_layers_ordinary():
    spec = SwiftKVSpec(8, 8)
    assert spec.groups == () and spec.owners == () and spec.prefill_reduction == 0
    assert spec.kv_cache_reduction(8) == 0


@pytest.mark.parametrize(
    ("spec", "prefill", "cache"),
    [  # paper, Sec. 4 and Appendix C.1: Llama-3.1-8B has 32 layers and 8 KV heads
        (SwiftKVSpec(32, 16), 0.5, 0.0),
        (SwiftKVSpec(32, 16, 2), 0.5, 0.25),
        (SwiftKVSpec(32, 16, 4), 0.5, 0.375),
        (SwiftKVSpec(32, 16, 8), 0.5, 0.4375),
        (SwiftKVSpec(32, 16, 16), 0.5, 0.46875),
        (SwiftKVSpec(32, 16, 1, 2), 0.5, 0.375),
        (SwiftKVSpec(32, 16, 1, 1), 0.5, 0.4375),
        (SwiftKVSpec(32, 16, 16, 32), 0.5, 0.375),
        (SwiftKVSpec(32, 12, 4), 0.625, 0.46875),
    ],
)
def test_reductions(spec, prefill, cache):
    assert spec.prefill_reduction == prefill
    assert spec.kv_cache_reduction(8) == cache


def test_ragged_group_counts_as_one():
    assert SwiftKVSpec(8, 3, 2).kv_cache_reduction(4) == 0.25  # 3 ordinary layers and 3 groups of 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "num_hidden_layers is 0"),
        ((8, 0), "num_key_value_layers is 0, but must lie between 1 and the model's 8 layers"),
        ((8, 9), "num_key_value_layers is 9"),
        ((8, 4, 0), "key_value_group_size is 0, but must lie between 1 and 4"),
        ((8, 4, 5), "key_value_group_size is 5"),
        ((8, 8, 2), "key_value_group_size is 2, but must lie between 1 and 1"),
        ((8, 4, 1, 0), "num_key_value_heads is 0"),
        ((8, 4.0), "num_key_value_layers is 4.0, but must be a whole number"),
        ((8, True), "num_key_value_layers is True"),
        ((8, "4"), "num_key_value_layers is '4'"),
    ],
)
def test_impossible(arguments, message):
    with pytest.raises(ValueError, match="^" + message) as caught:
        SwiftKVSpec(*arguments)
    assert "\n" not in str(caught.value)


def test_layer_out_of_range():
    with pytest.raises(ValueError, match="layer 8 does not exist"):
        SwiftKVSpec(8, 4).owner(8)


def test_teacher_heads_must_exist():
    with pytest.raises(ValueError, match="teacher_heads is 0"):
        SwiftKVSpec(8, 4).kv_cache_reduction(0)


def test_from_config():
    config = SimpleNamespace(num_hidden_layers=8, num_key_value_layers=4, key_value_group_size=2)
    assert SwiftKVSpec.from_config(config) == SwiftKVSpec(8, 4, 2)
    config.swiftkv_num_key_value_heads = 2
    assert SwiftKVSpec.from_config(config) == SwiftKVSpec(8, 4, 2, 2)
