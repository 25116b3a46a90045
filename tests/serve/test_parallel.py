"""Tensor parallelism over two processes gives the answers of one, also with fewer key/value heads than ranks."""

import pytest
import torch

pytestmark = pytest.mark.slow
ENGINE = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": 32}
MODELS = {
    # 2 heads, one on each rank. Groups of 5, 5 and 2.
    "heads divided": ("qwen2", 8, 5, {"random_bias": True}),
    # 1 head, so both ranks hold a copy.
    "heads copied": ("qwen2", 8, 4, {"random_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module")
def folders(checkpoint):
    return {name: checkpoint(*which, **changes) for name, (*which, changes) in MODELS.items()}


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    cases = [{"model": folder, "engine": ENGINE | ranks} for folder in folders.values() for ranks in ({}, two)]
    # Binding threads to a NUMA node for each rank, vLLM's default, asks for two of them.
    given = engines([case | {"runs": [{"prompts": prompts}]} for case in cases], VLLM_CPU_OMP_THREADS_BIND="nobind")
    return dict(zip(folders, zip(given[::2], given[1::2], strict=True), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_equal_one(answers, folders, compare, prompts, name):
    one, two = answers[name]
    assert "error" not in two, two
    assert two["fast_prefill"]
    compare(folders[name], prompts, two["runs"][0])
    assert two["runs"][0]["tokens"] == one["runs"][0]["tokens"]
    difference = torch.tensor(two["runs"][0]["logprobs"]) - torch.tensor(one["runs"][0]["logprobs"])
    assert difference.abs().max() < 1e-4
