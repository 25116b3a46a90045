"""Every architecture, grouping and number of key/value heads equals Hugging Face, with a cold and a warm prefix cache."""

import pytest
from tests.published import LLAMA_8B
from tests.serve.conftest import FULL_DEPTH, NGRAM, difference

pytestmark = pytest.mark.thorough

BLOCK = 32
ENGINE = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": BLOCK}
LLAMA3_ROPE = LLAMA_8B["rope_scaling"] | {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
BIAS = {"random_bias": True}
SLIDING = {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 48}  # shorter than most prompts
# Architecture, l of 20 layers, group size, other settings of the checkpoint; layers have 4 key/value heads, Qwen2's 2.
MODELS = {
    "llama, l = L": ("llama", 20, 1, {}),
    "llama, groups of 3, the last of 1": (
        "llama", 4, 3, BIAS | {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True}
    ),
    "mistral, sliding": ("mistral", 10, 2, {"sliding_window": 48}),
    "qwen2, 1 head, sliding, tied": (
        "qwen2", 10, 5, BIAS | SLIDING | {"tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
    "qwen3, groups of 3, tied": ("qwen3", 4, 3, {"tie_word_embeddings": True}),
    "1 head above, groups of 3": ("llama", 8, 3, {"kv_heads": 1}),
    "1 head above, sliding": ("mistral", 4, 4, {"kv_heads": 1, "sliding_window": 64}),
    "own, qwen2": ("qwen2", 10, 1, BIAS | {"own": True}),
    "own, qwen3": ("qwen3", 10, 1, {"own": True}),
    "experts, groups of 3": ("qwen3_moe", 4, 3, {}),
    "experts, own": ("qwen3_moe", 10, 1, {"own": True}),
    # In parts, vLLM's first runner tells nobody where a prompt ends once it speculates. No engine starts after it.
    "own, drafts": ("llama", 4, 1, {"own": True, "answers": 24}),
}  # fmt: skip
DRAFTING = {"max_num_batched_tokens": 2048, "speculative_config": NGRAM}
# Other kernels compute experts in 16 bits.
ROUNDED = {"fast": {"dtype": "bfloat16"}, "full depth": {"dtype": "bfloat16"} | FULL_DEPTH}
EXPERTS = "experts, groups of 3"


@pytest.fixture(scope="module")
def folders(checkpoint):
    return {name: checkpoint(*which, **changes) for name, (*which, changes) in MODELS.items()}


@pytest.fixture(scope="module")
def answers(engines, folders, eight):
    runs, longer = [{"prompts": eight}] * 2, [{"prompts": eight, "max_tokens": 24}] * 2
    cases = {name: {"model": folder, "engine": ENGINE, "runs": runs} for name, folder in folders.items()}
    rounded = {
        name: {"model": folders[EXPERTS], "engine": ENGINE | changes, "runs": runs[:1]}
        for name, changes in ROUNDED.items()
    }
    drafts = cases.pop("own, drafts") | {"engine": DRAFTING, "runs": longer}
    return engines(cases | rounded | {"own, drafts": drafts})


@pytest.mark.parametrize("name", MODELS)
def test_equals_huggingface(answers, folders, compare, eight, name):
    assert answers[name]["fast_prefill"] == ("l = L" not in name)
    for run in answers[name]["runs"]:
        compare(folders[name], eight, run)


def test_a_prefix_is_found_in_longer_blocks_where_there_are_fewer_heads(answers, eight):
    for name, block in {"qwen3, groups of 3, tied": BLOCK, "1 head above, groups of 3": 4 * BLOCK}.items():
        cold, warm = (run["cached"] for run in answers[name]["runs"])
        assert max(cold) <= BLOCK and warm == [(len(prompt) - 1) // block * block for prompt in eight]


def test_drafts_are_accepted_beside_keys_and_values_of_their_own(answers):
    assert answers["own, drafts"]["runs"][0]["accepted_drafts"] > 0


def test_experts_in_16_bits_round_as_at_full_depth(answers, folders, eight):
    assert answers["fast"]["fast_prefill"] and not answers["full depth"]["fast_prefill"]
    # Medians: where two experts are almost as likely, rounding takes the other one.
    fast, whole = (difference(answers[name], folders[EXPERTS], eight).median() for name in ROUNDED)
    assert fast < 1.5 * whole < difference(answers["fast"], folders["experts, own"], eight).median() / 20
