"""The cost model against the paper's numbers, against a plain layer-by-layer count, and on bad input."""

import json
from pathlib import Path

import pytest
from tests.conftest import GROUPED_QUERY, SHAPE
from tests.conftest import LATENT as LATENT_SHAPE

from pipeline.artifacts.flops import limits
from swiftkv.cost import (
    Dimensions,
    added_weights,
    decode_flops,
    kv_bytes_per_token,
    parameter_count,
    prefill_flops,
    request_flops,
)
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

RESOURCES = Path(__file__).parents[2] / "resources"
TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
LATENT = SHAPE | LATENT_SHAPE | {"model_type": "deepseek_v2"}
SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
}  # fmt: skip


def architecture_config(name: str) -> dict:
    return json.loads((RESOURCES / f"architectures/{name}.json").read_text())["config"]


def test_requests():
    """The baseline's is prefill of all but the last token and its logits; a variant's limit is worked out by hand."""
    arch = Dimensions.from_config(TINY)
    assert request_flops(arch, None, 40, 5) == {**prefill_flops(arch, None, 44), "vocab": 5 * 2 * 512 * 64}
    arch = Dimensions.from_config(SMOLLM2)
    base, ours = (sum(request_flops(arch, spec, 2000, 16).values()) for spec in (None, SwiftKVSpec(30, 15)))
    assert base / ours == pytest.approx(1.890, abs=5e-4)


def test_sliding_window_bounds_attention():
    windowed = Dimensions.from_config({**TINY, "model_type": "mistral", "sliding_window": 4})
    seen = sum(min(position, 4) for position in range(1, 11))
    assert prefill_flops(windowed, None, 10)["attention"] == 6 * 4 * 64 * seen
    assert decode_flops(windowed, None, 10)["attention"] == 6 * 4 * 64 * 4
    assert prefill_flops(windowed, None, 3) == prefill_flops(Dimensions.from_config(TINY), None, 3)
    qwen = {**TINY, "model_type": "qwen2", "sliding_window": 4, "use_sliding_window": False}
    assert Dimensions.from_config(qwen).windows == (None,) * 6
    assert Dimensions.from_config({**qwen, "use_sliding_window": True, "max_window_layers": 4}).windows == (
        None,
    ) * 4 + (4, 4)


def test_kv_cache_bytes_and_capacity():
    arch = Dimensions.from_config(architecture_config("llama-3.1-8b"))
    assert kv_bytes_per_token(arch, None) == 131072  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert kv_bytes_per_token(arch, SwiftKVSpec(32, 16, 4), "fp8") == 40960


BIASED = {"attention_bias": True}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [(name, {}) for name in GROUPED_QUERY]
    + [("llama", BIASED | {"mlp_bias": True}), ("qwen3", BIASED)]
    + [("deepseek_v2", {"num_experts_per_tok": 8} | changes) for changes in ({}, BIASED | {"q_lora_rank": 20})],
)
def test_every_architecture_counts_what_its_model_has(architecture, changes, tiny_teacher):
    """All parameters of a real model, and two FLOPs for each weight of its matrices that a token meets."""
    teacher = tiny_teacher(architecture, tie_word_embeddings=False, **changes)
    config = teacher.config.to_dict()
    assert parameter_count(config) == teacher.num_parameters()
    matrices = [p.numel() for name, p in teacher.named_parameters() if p.dim() > 1 and "embed_tokens" not in name]
    arch = Dimensions.from_config(config)
    assert sum(decode_flops(arch, None, 9).values()) == 2 * sum(matrices) + 9 * 6 * arch.pair_flops
    for spec in (SwiftKVSpec(6, 2, own_key_values=True), SwiftKVSpec(6, 2, 3)):
        student = rewire(teacher, spec)
        added = student.swiftkv_parameters()
        assert added_weights(arch, spec) == sum(value.numel() for value in added.values() if value.dim() > 1)
        student.model.drop_teacher_projections()
        assert parameter_count(config, spec) == student.num_parameters()
        more = sum(decode_flops(arch, spec, 9).values()) - sum(decode_flops(arch, None, 9).values())
        skipped = 0 if spec.own_key_values else 4 * sum(arch.key_value_weights())
        assert more == 2 * (len(spec.groups) * sum(arch.key_value_weights()) - skipped)


def test_a_latent_cache_keeps_one_latent_a_layer_or_group():
    arch = Dimensions.from_config(LATENT)
    assert kv_bytes_per_token(arch, None) == 2 * 6 * (24 + 8)
    assert kv_bytes_per_token(arch, SwiftKVSpec(6, 2, 3)) == 2 * (2 + 2) * (24 + 8)
    prefill = prefill_flops(arch, SwiftKVSpec(6, 2), 7)
    assert prefill["attention"] == 2 * 28 * 2 * 8 * (16 + 8 + 12)
    assert prefill["mlp"] == 7 * 2 * 64 * (3 * 96 + 3 * 32 * (1 + 2) + 8)  # a dense layer, and one with 3 of 9 experts


def test_limits_of_a_variant():
    arch = Dimensions.from_config(TINY)
    found = limits(arch, SwiftKVSpec(6, 3, 3), 32)
    assert found["exact_relative_percent"] * found["prefill_speedup_limit"] == pytest.approx(100)
    assert found["kv_capacity_limit_fp8"] == 2 * found["kv_capacity_limit_bfloat16"] == pytest.approx(2 * 6 / 4)
    assert 1 < found["request_speedup_limit"] < found["prefill_speedup_limit"]
    assert limits(arch, None, 32)["request_speedup_limit"] == 1
