"""Two ranks of tensor parallelism answer as one process, also with fewer key/value heads than ranks."""

import pytest

pytestmark = pytest.mark.slow
ENGINE = {
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": True,
    "block_size": 32,
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
}
MODELS = {
    # 2 heads, one on each rank. Groups of 5, 5 and 2.
    "heads divided": ("qwen2", 8, 5, {"random_bias": True}),
    # 4 heads below l, 2 on each rank, and 1 from l on, of which both hold a copy.
    "fewer heads copied": ("llama", 8, 4, {"kv_heads": 1}),
    # Half of each expert on each rank.
    "experts": ("qwen3_moe", 8, 4, {}),
}


def test_two_ranks_equal_huggingface(engines, checkpoint, compare, eight):
    folders = {name: checkpoint(*which, **changes) for name, (*which, changes) in MODELS.items()}
    runs = [{"prompts": eight}]
    cases = {name: {"model": folder, "engine": ENGINE, "runs": runs} for name, folder in folders.items()}
    for name, answer in engines(cases).items():
        assert answer["fast_prefill"]
        compare(folders[name], eight, answer["runs"][0])
