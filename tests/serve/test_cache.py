"""KV memory is what the groups need and no more; FP8 doubles the tokens; Merge-all-Layers keeps one layer's."""

import pytest
import torch
from tests.serve.conftest import FULL_DEPTH

from pipeline.engines.log import Unsupported, require_fp8_cache

pytestmark = pytest.mark.thorough

L, BLOCK = 20, 32
LAYER = BLOCK * 2 * 4 * 32 * 2  # bytes of a block of one ordinary layer: keys and values of 4 heads of 32 in bfloat16
MEMORY = 4200 * LAYER  # a multiple of what each variant needs for a block, so that nothing is left over
# name: (l, group size, engine arguments), caches in units of one ordinary layer's
VARIANTS = {
    "baseline": (None, 1, {}, 20),
    "groups of 2": (10, 2, {}, 10 + 5),
    "full depth, groups of 3, the last of 1": (10, 3, FULL_DEPTH, 10 + 4),
    "half, 1 of 4 heads": (10, 1, {}, 10 + 10 / 4),
    "merge": (None, 1, {"hf_overrides": {"architectures": ["LlamaMergeAllLayersForCausalLM"]}}, 1),
}
try:
    require_fp8_cache()
    VARIANTS["groups of 2, fp8"] = (10, 2, {"kv_cache_dtype": "fp8"}, 10 + 5)
except Unsupported:  # vLLM has no such kernel for this processor
    pass


@pytest.fixture(scope="module")
def answers(engines, checkpoint, eight):
    run = {"prompts": eight, "max_tokens": 1, "allowed_token_ids": [300]}
    cases = {
        name: {
            "model": checkpoint("llama", layers, group, **({"kv_heads": 1} if "1 of 4 heads" in name else {})),
            # bfloat16: the size an FP8 cache is compared with
            "engine": {"dtype": "bfloat16", "block_size": BLOCK, "kv_cache_memory_bytes": MEMORY} | engine,
            "runs": [run, {"prompts": eight, "max_tokens": 4}],
        }
        for name, (layers, group, engine, _) in VARIANTS.items()
    }
    return engines(cases)


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_are_the_memory_over_what_the_caches_need(answers, name):
    """vLLM gives every cache the same number of whole blocks: here the ratio to the baseline is exact."""
    answer, layers = answers[name], VARIANTS[name][-1]
    in_a_byte = 2 if "fp8" in name else 1  # twice as many numbers
    assert answer["reported_tokens"] * layers == answers["baseline"]["reported_tokens"] * L * in_a_byte
    # The plain product, where all blocks have one length.
    assert answer["kv_cache_tokens"] == answer["reported_tokens"] or "heads" in name
    assert answer["kv_cache_bytes"] == MEMORY


def test_merge_all_layers_answers_in_eager_mode(answers):
    baseline, merge = (answers[name]["runs"][1]["tokens"] for name in ("baseline", "merge"))
    assert [len(tokens) for tokens in merge] == [4] * 8
    assert merge != baseline  # one cache for all layers: other answers


@pytest.mark.skipif("groups of 2, fp8" not in VARIANTS, reason="vLLM has no FP8 cache on this processor")
def test_fp8_is_on_and_near(answers):
    """Log-probabilities of one token: weights are random and norms large, so they differ by 3.3 where prompts do by 7.1."""
    exact, fp8 = (torch.tensor(answers[name]["runs"][0]["logprobs"]) for name in ("groups of 2", "groups of 2, fp8"))
    difference = (exact - fp8).abs()
    assert 1e-3 < difference.mean() < exact.std()
