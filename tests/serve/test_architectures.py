"""Every grouping and architecture equals Hugging Face; l = L equals vLLM's own Llama."""

import pytest
import torch

pytestmark = pytest.mark.thorough

ENGINE = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": 32}
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
WINDOW = 48  # shorter than most prompts
BIAS = {"random_bias": True}
SLIDING = {"use_sliding_window": True, "max_window_layers": 0}
SWIFTKV = {
    # AcrossKV; 20 layers, l = 4
    "groups of 1": ("llama", 4, 1, {}),
    "groups of 2": ("llama", 4, 2, {}),
    "groups of 16": ("llama", 4, 16, {}),
    "groups of 3, the last of 1": ("llama", 4, 3, {}),
    # Architectures
    "tied embeddings": ("llama", 10, 2, {"tie_word_embeddings": True}),
    "llama3 rope": ("llama", 10, 2, {"rope_parameters": LLAMA3_ROPE}),
    "biases": ("llama", 10, 2, {"attention_bias": True, "mlp_bias": True, "random_bias": True}),
    "mistral": ("mistral", 10, 2, {}),
    "mistral, sliding": ("mistral", 10, 2, {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", 10, 5, BIAS),
    "qwen2, 1 head, tied": ("qwen2", 10, 5, BIAS | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", 10, 2, {}),
    "qwen3, groups of 3, tied": ("qwen3", 4, 3, {"tie_word_embeddings": True}),
    "qwen2, sliding": ("qwen2", 10, 2, BIAS | SLIDING | {"sliding_window": WINDOW}),
}
PLAIN = {"llama": {}, "mistral": {}, "qwen2": BIAS, "qwen3": {}}


@pytest.fixture(scope="module")
def folders(checkpoint):
    return {name: checkpoint(*which, **changes) for name, (*which, changes) in SWIFTKV.items()}


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    cases = [{"model": folder, "engine": ENGINE, "runs": [{"prompts": prompts}]} for folder in folders.values()]
    return dict(zip(folders, engines(cases), strict=True))


@pytest.mark.parametrize("name", SWIFTKV)
def test_equals_huggingface(answers, folders, compare, prompts, name):
    assert "error" not in answers[name], answers[name]
    assert answers[name]["fast_prefill"]
    compare(folders[name], prompts, answers[name]["runs"][0])


@pytest.fixture(scope="module")
def unchanged(engines, checkpoint, prompts):
    """Answers of l = L and of the ordinary model, by architecture."""
    folders = [checkpoint(a, layers, **changes) for a, changes in PLAIN.items() for layers in (20, None)]
    given = engines([{"model": f, "engine": ENGINE, "runs": [{"prompts": prompts}]} for f in folders])
    return dict(zip(PLAIN, zip(given[::2], given[1::2], strict=True), strict=True))


@pytest.mark.parametrize("architecture", PLAIN)
def test_l_equal_to_all_layers_is_the_ordinary_model(unchanged, architecture):
    ours, plain = unchanged[architecture]
    assert not ours["fast_prefill"]
    assert ours["kv_cache_tokens"] == plain["kv_cache_tokens"]
    (ours,), (plain,) = ours["runs"], plain["runs"]
    assert ours["tokens"] == plain["tokens"] and len(plain["tokens"]) == 20
    assert torch.allclose(torch.tensor(ours["logprobs"]), torch.tensor(plain["logprobs"]), rtol=0, atol=1e-5)
