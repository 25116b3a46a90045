"""Fewer key/value heads from l on (Appendix C.1) than below: caches with longer blocks, in groups of their own."""

import pytest

pytestmark = pytest.mark.thorough

BLOCK = 32
ENGINE = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "block_size": BLOCK}
FULL_DEPTH = {"additional_config": {"swiftkv_full_depth": True}}
# name: checkpoint, engine arguments; of 4 heads
MODELS = {
    "1 head": (("llama", 4, 4, {"kv_heads": 1}), {}),
    "1 head, full depth": (("llama", 4, 4, {"kv_heads": 1}), FULL_DEPTH),
    "2 heads, no groups": (("llama", 10, 1, {"kv_heads": 2}), {}),
}
MORE = {
    "1 head, groups of 3": (("llama", 8, 3, {"kv_heads": 1}), {}),
    "1 head, sliding": (("mistral", 4, 4, {"kv_heads": 1, "sliding_window": 64}), {}),
}


@pytest.fixture(scope="module")
def run(engines, checkpoint, compare, eight):
    """Function that asks the same twice and compares: with a cold and with a warm prefix cache."""

    def check(models):
        cases = [
            {"model": checkpoint(*which, **changes), "engine": ENGINE | engine, "runs": [{"prompts": eight}] * 2}
            for (*which, changes), engine in models.values()
        ]
        answers = dict(zip(models, engines(cases), strict=True))
        for case, (name, answer) in zip(cases, answers.items(), strict=True):
            assert "error" not in answer, answer
            assert answer["fast_prefill"] == ("full depth" not in name)
            for given in answer["runs"]:
                compare(case["model"], eight, given)
        return answers

    return check


def test_answers_equal_huggingface_and_a_prefix_is_found_in_longer_blocks(run, eight):
    for name, answer in run(MODELS).items():
        block = BLOCK * 4 // int(name[0])
        cold, warm = (given["cached"] for given in answer["runs"])
        assert max(cold) < block and warm == [(len(prompt) - 1) // block * block for prompt in eight]


@pytest.mark.slow
def test_uneven_groups_and_windows_equal_huggingface(run):
    run(MORE)
