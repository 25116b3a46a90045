"""The second model runner (V2), which GPUs take from vLLM 0.30 on, end to end on a processor, in Triton's interpreter."""

import importlib.util
import random

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

VOCABULARY = 2048  # the sampler's kernels run once for each 1,024 tokens of it, in Python
LENGTHS = (5, 33, 64, 100, 127, 130, 200, 300)
PARTS = {"max_num_batched_tokens": 128, "block_size": 32}  # prompts in chunks, beside others that decode
ENGINE = PARTS | {"enable_prefix_caching": True}
FULL_DEPTH = {"additional_config": {"swiftkv_full_depth": True}}
FEW_BLOCKS = {"max_model_len": 256, "num_gpu_blocks_override": 14}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
# Tokens of each step and positions that the upper half runs, for a prompt of 300 tokens before one of 5 and after it.
LONG_FIRST = [(128, []), (128, []), (49, [4, 299]), (2, [5, 300]), (2, [6, 301])]
SHORT_FIRST = [(128, [4, 122]), (128, [5, 249]), (51, [6, 299]), (1, [300]), (1, [301])]


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama", 10, 4, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def own(checkpoint):
    """A model whose answers keep their own keys and values."""
    return checkpoint("llama", 10, vocab_size=VOCABULARY, own=True)


@pytest.fixture(scope="module")
def few(checkpoint):
    """A model with few possible answers: they recur, so drafts are made, accepted and rejected."""
    return checkpoint("llama", 10, 4, vocab_size=VOCABULARY, answers=24)


@pytest.fixture(scope="module")
def ids():
    source = random.Random(3)
    return [[source.randrange(10, VOCABULARY) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def answers(engines, folder, own, few, ids):
    run, speculating = {"prompts": ids, "max_tokens": 8}, PARTS | {"speculative_config": NGRAM}
    cases = {
        "fast": {"model": folder, "engine": ENGINE, "runs": [run, run]},
        "full depth": {"model": folder, "engine": ENGINE | FULL_DEPTH, "runs": [run]},
        # Room for some of the requests only: later ones push earlier ones out, which then are computed again.
        "preempted": {"model": folder, "engine": PARTS | FEW_BLOCKS, "runs": [{"prompts": ids[1:5], "max_tokens": 12}]},
        "own": {"model": own, "engine": ENGINE, "runs": [run, run]},
        "drafts": {"model": few, "engine": speculating, "runs": [{"prompts": ids[:3:-1], "max_tokens": 16}]},
    }
    return dict(zip(cases, engines(list(cases.values()), "interpreted.py"), strict=True))


def test_the_upper_half_runs_a_row_of_each_request_or_none(engines, compare, folder, ids):
    orders = {"long first": (ids[::-7], LONG_FIRST), "short first": (ids[::7], SHORT_FIRST)}
    runs = [{"prompts": prompts, "max_tokens": 3} for prompts, _ in orders.values()]
    bad = {"prompts": ids[:1], "prompt_logprobs": 0}
    (answer,) = engines([{"model": folder, "engine": PARTS, "runs": [bad, *runs]}], "interpreted.py")
    assert "error" not in answer, answer
    assert "Using V2 Model Runner" in answer["log"] and answer["fast_prefill"]
    refused, *answered = answer["runs"]
    assert "swiftkv_full_depth" in refused["error"]
    for (prompts, expected), run in zip(orders.values(), answered, strict=True):
        assert [(step["tokens"], sorted(step["upper"])) for step in run["steps"]] == expected
        compare(folder, prompts, run)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fast", "own"])
def test_the_second_runner_answers_as_huggingface(request, answers, compare, folder, ids, case):
    answer, folder = answers[case], request.getfixturevalue({"fast": "folder", "own": "own"}[case])
    assert "error" not in answer, answer
    assert "Using V2 Model Runner" in answer["log"] and answer["fast_prefill"]
    first, again = answer["runs"]
    compare(folder, ids, first)
    compare(folder, ids, again)
    assert sum(again["cached"]) > sum(first["cached"])


@pytest.mark.slow
def test_fast_prefill_changes_no_answer(answers):
    fast, full = (answers[name] for name in ("fast", "full depth"))
    assert "error" not in full, full
    assert not full["fast_prefill"]
    (expected,), (found, _) = full["runs"], fast["runs"]
    assert found["tokens"] == expected["tokens"]
    assert torch.allclose(*(torch.tensor(run["logprobs"]) for run in (found, expected)), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_preempted_requests_equal_huggingface(answers, compare, folder, ids):
    answer = answers["preempted"]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    assert run["preemptions"] > 0
    compare(folder, ids[1:5], run)


@pytest.mark.slow
def test_n_gram_speculation_changes_no_answer(answers, compare, few, ids):
    answer = answers["drafts"]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    compare(few, ids[:3:-1], run)
    assert 0 < run["accepted_drafts"] < 4 * 15
    # Steps without a row to sample from are left out here too.
    assert [] in [step["upper"] for step in run["steps"]]
