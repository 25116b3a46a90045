"""KV memory is what the groups need and no more; FP8 doubles the tokens; Merge-all-Layers keeps one layer's."""

import pytest
import torch

from pipeline.measure.engine import Unsupported, require_fp8_cache

pytestmark = pytest.mark.thorough

L, BLOCK = 20, 32
LAYER = BLOCK * 2 * 4 * 32 * 2  # bytes of a block of one ordinary layer: keys and values of 4 heads of 32 in bfloat16
MEMORY = 4200 * LAYER  # a multiple of what each variant needs for a block, so that nothing is left over
# name: (l, group size, engine arguments), caches in units of one ordinary layer's
VARIANTS = {
    "baseline": (None, 1, {}, 20),
    "half": (10, 1, {}, 20),
    "groups of 2": (10, 2, {}, 10 + 5),
    "groups of 3, the last of 1": (10, 3, {}, 10 + 4),
    "groups of 16": (4, 16, {}, 4 + 1),
    "half, 1 of 4 heads": (10, 1, {}, 10 + 10 / 4),
    "full depth, groups of 16": (4, 16, {"additional_config": {"swiftkv_full_depth": True}}, 4 + 1),
    "merge": (None, 1, {"hf_overrides": {"architectures": ["LlamaMergeAllLayersForCausalLM"]}}, 1),
}
IN_FP8 = {
    "half, fp8": (10, 2, {"kv_cache_dtype": "fp8"}, 10 + 5),
    "baseline, fp8": (None, 1, {"kv_cache_dtype": "fp8"}, 20),
}
try:
    require_fp8_cache()
    VARIANTS |= IN_FP8
except Unsupported:  # vLLM has no such kernel for this processor
    IN_FP8 = {}


@pytest.fixture(scope="module")
def answers(engines, checkpoint, prompts):
    cases = [
        {
            "model": checkpoint("llama", layers, group, **({"kv_heads": 1} if "1 of 4 heads" in name else {})),
            # bfloat16: the size an FP8 cache is compared with
            "engine": {"dtype": "bfloat16", "block_size": BLOCK, "kv_cache_memory_bytes": MEMORY} | engine,
            "runs": [{"prompts": prompts, "max_tokens": 4}],
        }
        for name, (layers, group, engine, _) in VARIANTS.items()
    ]
    return dict(zip(VARIANTS, engines(cases), strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_are_the_memory_over_what_the_caches_need(answers, name):
    """vLLM gives every cache the same number of whole blocks: here the ratio to the baseline is exact."""
    answer, layers = answers[name], VARIANTS[name][-1]
    assert "error" not in answer, answer
    in_a_byte = 2 if "fp8" in name else 1  # twice as many numbers
    assert answer["reported_tokens"] * layers == answers["baseline"]["reported_tokens"] * L * in_a_byte
    assert answer["reported_tokens"] == MEMORY // LAYER // layers * in_a_byte * BLOCK
    # The plain product, where all blocks have one length.
    assert answer["kv_cache_tokens"] == answer["reported_tokens"] or "heads" in name
    assert answer["kv_cache_bytes"] == MEMORY


def test_merge_all_layers_answers_in_eager_mode(answers):
    assert answers["merge"]["kv_cache_tokens"] == L * answers["baseline"]["kv_cache_tokens"]
    run = answers["merge"]["runs"][0]
    assert [len(tokens) for tokens in run["tokens"]] == [4] * 20
    assert run["tokens"] != answers["baseline"]["runs"][0]["tokens"]  # one cache for all layers: other answers


@pytest.fixture(scope="module")
def rounded(engines, smollm2_swiftkv, prompts, tokenizer):
    """Log-probability of one given first token after short prompts, of real weights, by KV cache type."""
    arguments = {"max_tokens": 1, "only": tokenizer("The").input_ids[:1]}
    runs = [{"prompts": [prompt for prompt in prompts if len(prompt) < 128][:8]} | arguments]
    kinds = ("auto", "fp8")
    cases = [
        {"model": smollm2_swiftkv, "engine": {"dtype": "bfloat16", "kv_cache_dtype": kind}, "runs": runs}
        for kind in kinds
    ]
    return {kind: answer["runs"][0] for kind, answer in zip(kinds, engines(cases), strict=True)}


@pytest.mark.skipif(not IN_FP8, reason="vLLM has no kernel for FP8 caches on this processor")
def test_fp8_is_on_and_near(rounded):
    exact, fp8 = (torch.tensor(rounded[kind]["logprobs"]) for kind in ("auto", "fp8"))
    difference = (exact - fp8).abs()
    assert difference.mean() > 1e-3
    assert difference.max() < 2.0  # measured: 0.98, mean 0.5; the untouched SmolLM2, which is surer of itself, 0.22
