"""The second model runner (V2), which GPUs take from vLLM 0.30 on, end to end on a processor, in Triton's interpreter."""

import importlib.util
import random

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow

VOCABULARY = 2048  # the sampler's kernels run once for each 1,024 tokens of it, in Python
LENGTHS = (5, 33, 64, 100, 127, 130, 200, 260)
ENGINE = {"max_num_batched_tokens": 128, "enable_prefix_caching": True}  # prompts in chunks, beside others that decode


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama", 10, 4, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def ids():
    source = random.Random(3)
    return [[source.randrange(10, VOCABULARY) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def answers(engines, folder, ids):
    run = {"prompts": ids, "max_tokens": 8}
    full_depth = {"additional_config": {"swiftkv_full_depth": True}}
    cases = [
        {"model": folder, "engine": ENGINE, "runs": [run, run]},
        {"model": folder, "engine": ENGINE | full_depth, "runs": [run]},
    ]
    return dict(zip(("fast", "full depth"), engines(cases, "interpreted.py"), strict=True))


def test_the_second_runner_answers_as_huggingface(answers, compare, folder, ids):
    answer = answers["fast"]
    assert "error" not in answer, answer
    assert "Using V2 Model Runner" in answer["log"] and answer["fast_prefill"]
    first, again = answer["runs"]
    compare(folder, ids, first)
    compare(folder, ids, again)
    assert sum(again["cached"]) > sum(first["cached"])


def test_fast_prefill_changes_no_answer(answers):
    fast, full = (answers[name] for name in ("fast", "full depth"))
    assert "error" not in full, full
    assert not full["fast_prefill"]
    (expected,), (found, _) = full["runs"], fast["runs"]
    assert found["tokens"] == expected["tokens"]
    assert torch.allclose(*(torch.tensor(run["logprobs"]) for run in (found, expected)), rtol=0, atol=1e-4)
