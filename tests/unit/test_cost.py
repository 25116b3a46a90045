"""The cost model against the paper's numbers, against a plain layer-by-layer count, and on bad input."""

import pytest
from tests.conftest import GROUPED_QUERY, SHAPE, tiny_teacher
from tests.conftest import LATENT as LATENT_SHAPE
from tests.programs import ROOT

from swiftkv.cost import Dimensions, added_weights, decode_flops, kv_bytes_per_token, parameter_count, prefill_flops
from swiftkv.io import read_json
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
LATENT = SHAPE | LATENT_SHAPE | {"model_type": "deepseek_v2"}


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


BIASED = {"attention_bias": True}


@pytest.mark.parametrize(
    "architecture, changes",
    [(name, {}) for name in GROUPED_QUERY if name != "qwen3_moe"]
    + [("llama", BIASED | {"mlp_bias": True}), ("qwen3", BIASED)]
    # All experts are active, as all of the model's matrices are counted.
    + [("qwen3_moe", {"num_experts_per_tok": 8} | changes) for changes in ({}, BIASED | {"decoder_sparse_step": 2})]
    + [("deepseek_v2", {"num_experts_per_tok": 8} | changes) for changes in ({}, BIASED | {"q_lora_rank": 20})],
)
def test_every_architecture_counts_what_its_model_has(architecture, changes):
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


@pytest.mark.parametrize("name, parameters", [("qwen3-30b-a3b", 30_532_122_624), ("deepseek-v2-lite", 15_706_484_224)])
def test_real_models_have_the_published_numbers_of_parameters(name, parameters):
    assert parameter_count(read_json(ROOT / f"resources/architectures/{name}.json")["config"]) == parameters


def test_a_latent_cache_keeps_one_latent_a_layer_or_group():
    arch = Dimensions.from_config(LATENT)
    assert kv_bytes_per_token(arch, None) == 2 * 6 * (24 + 8)
    assert kv_bytes_per_token(arch, SwiftKVSpec(6, 2, 3)) == 2 * (2 + 2) * (24 + 8)
    prefill = prefill_flops(arch, SwiftKVSpec(6, 2), 7)
    assert prefill["attention"] == 2 * 28 * 2 * 8 * (16 + 8 + 12)
    assert prefill["mlp"] == 7 * 2 * 64 * (3 * 96 + 3 * 32 * (1 + 2) + 8)  # a dense layer, and one with 3 of 9 experts
