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
}


def test_two_ranks_equal_huggingface(engines, checkpoint, compare, eight):
    folders = [checkpoint(*which, **changes) for *which, changes in MODELS.values()]
    cases = [{"model": folder, "engine": ENGINE, "runs": [{"prompts": eight}]} for folder in folders]
    for folder, answer in zip(folders, engines(cases), strict=True):
        assert "error" not in answer, answer
        assert answer["fast_prefill"]
        compare(folder, eight, answer["runs"][0])
