"""The second model runner (V2), which GPUs take from vLLM 0.30 on, end to end on a processor, in Triton's interpreter."""

import random

import pytest
from tests.programs import ROOT
from tests.serve.conftest import NGRAM

if not (ROOT / ".venv/triton").is_dir():
    pytest.skip("Triton is not installed; `make test-thorough` does it", allow_module_level=True)

pytestmark = pytest.mark.slow

VOCABULARY = 2048  # the sampler's kernels run once for each 1,024 tokens of it, in Python
LENGTHS = (5, 33, 64, 100, 127, 130, 200, 300)
PARTS = {"max_num_batched_tokens": 128, "block_size": 32}  # prompts in chunks, beside others that decode
FEW_BLOCKS = {"max_model_len": 256, "num_gpu_blocks_override": 14}
# Tokens of each step and positions that the upper half runs, for a prompt of 300 tokens before one of 5 and after it.
LONG_FIRST = [(128, []), (128, []), (49, [4, 299]), (2, [5, 300]), (2, [6, 301])]
SHORT_FIRST = [(128, [4, 122]), (128, [5, 249]), (51, [6, 299]), (1, [300]), (1, [301])]


@pytest.fixture(scope="module")
def folders(checkpoint):
    """Few possible answers recur, so drafts are made, accepted and rejected."""
    changes = {
        "fast": ("llama", 4, {}),
        "own": ("llama", 1, {"own": True}),
        "drafts": ("llama", 4, {"answers": 24}),
        "experts": ("qwen3_moe", 4, {}),
    }
    return {
        name: checkpoint(architecture, 10, group, vocab_size=VOCABULARY, **change)
        for name, (architecture, group, change) in changes.items()
    }


@pytest.fixture(scope="module")
def ids():
    source = random.Random(3)
    return [[source.randrange(10, VOCABULARY) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def answers(engines, folders, ids):
    bad = {"prompts": ids[:1], "prompt_logprobs": 0}
    orders = [{"prompts": prompts, "max_tokens": 3} for prompts in (ids[::-7], ids[::7])]
    cases = {
        "fast": {"model": folders["fast"], "engine": PARTS, "runs": [bad, *orders, {"prompts": ids, "max_tokens": 8}]},
        # Room for some of the requests only: later ones push earlier ones out, which then are computed again.
        "preempted": {
            "model": folders["fast"],
            "engine": PARTS | FEW_BLOCKS,
            "runs": [{"prompts": ids[1:5], "max_tokens": 12}],
        },
        "own": {
            "model": folders["own"],
            "engine": PARTS | {"enable_prefix_caching": True},
            "runs": [{"prompts": ids[4:], "max_tokens": 8}] * 2,
        },
        "experts": {"model": folders["experts"], "engine": PARTS, "runs": [{"prompts": ids, "max_tokens": 8}]},
        "drafts": {
            "model": folders["drafts"],
            "engine": PARTS | {"speculative_config": NGRAM},
            "runs": [{"prompts": ids[:3:-1], "max_tokens": 16}],
        },
    }
    given = engines(cases, "interpreted.py")
    for answer in given.values():
        assert "Using V2 Model Runner" in answer["log"] and answer["fast_prefill"]
    return given


def test_the_upper_half_runs_a_row_of_each_request_or_none(answers, compare, folders, ids):
    refused, long_first, short_first, every = answers["fast"]["runs"]
    assert "swiftkv_full_depth" in refused["error"]
    for run, prompts, steps in ((long_first, ids[::-7], LONG_FIRST), (short_first, ids[::7], SHORT_FIRST)):
        assert [(step["tokens"], sorted(step["upper"])) for step in run["steps"]] == steps
        compare(folders["fast"], prompts, run)
    compare(folders["fast"], ids, every)


def test_preempted_requests_equal_huggingface(answers, compare, folders, ids):
    (run,) = answers["preempted"]["runs"]
    assert run["preemptions"] > 0
    compare(folders["fast"], ids[1:5], run)


def test_keys_and_values_of_their_own_and_prefix_caching_equal_huggingface(answers, compare, folders, ids):
    first, again = answers["own"]["runs"]
    compare(folders["own"], ids[4:], first)
    compare(folders["own"], ids[4:], again)
    assert sum(again["cached"]) > sum(first["cached"])


def test_experts_equal_huggingface(answers, compare, folders, ids):
    (run,) = answers["experts"]["runs"]
    compare(folders["experts"], ids, run)


def test_n_gram_speculation_changes_no_answer(answers, compare, folders, ids):
    (run,) = answers["drafts"]["runs"]
    compare(folders["drafts"], ids[:3:-1], run)
    assert 0 < run["accepted_drafts"] < 4 * 15
    # Steps without a row to sample from are left out here too.
    assert [] in [step["upper"] for step in run["steps"]]
