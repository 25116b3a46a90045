"""Two processes answer as one: tensor parallelism, also with fewer key/value heads than ranks; data parallelism."""

import pytest
import torch

pytestmark = pytest.mark.slow
ENGINE = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": 32}
MODELS = {
    # 2 heads, one on each rank. Groups of 5, 5 and 2.
    "heads divided": ("qwen2", 8, 5, {"random_bias": True}),
    # 1 head, so both ranks hold a copy.
    "heads copied": ("qwen2", 8, 4, {"random_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    # 4 heads below l, 2 on each rank, and 1 from l on, of which both hold a copy.
    "fewer heads copied": ("llama", 8, 4, {"kv_heads": 1}),
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


def test_two_engines_that_share_the_requests_equal_huggingface(engines, checkpoint, compare, prompts):
    folder = checkpoint("llama", 4, 4)
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 2**26}
    case = {"model": folder, "engine": ENGINE | settings, "runs": [{"prompts": prompts}]}
    (answer,) = engines([case], "data_parallel.py", VLLM_CPU_OMP_THREADS_BIND="nobind")
    compare(folder, prompts, answer)
    assert min(answer["finished"].values()) > 0 and sum(answer["finished"].values()) == len(prompts)
