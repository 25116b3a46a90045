"""Answers that keep their own keys and values are those of Hugging Face, in one piece, in several and from the prefix cache."""

import pytest

SPLIT = {"max_num_batched_tokens": 64}  # every longer prompt comes in parts, in batches with decoding rows
WHOLE = {"max_num_batched_tokens": 2048}
CACHED = {"enable_prefix_caching": True, "block_size": 32}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
BIAS = {"random_bias": True}
CASES = {
    "llama": (("llama", 4, {}), SPLIT | CACHED),
    "llama, whole prompts": (("llama", 4, {}), WHOLE),
    "qwen2": (("qwen2", 10, BIAS), SPLIT),
    "qwen3": (("qwen3", 10, {}), SPLIT),
    # In pieces, vLLM's first runner tells nobody where a prompt ends once it speculates. No engine starts after it.
    "llama, drafts": (("llama", 4, {"answers": 24}), WHOLE | {"speculative_config": NGRAM}),
}
REFUSED = {
    "full depth": ({"additional_config": {"swiftkv_full_depth": True}}, "is the original model; serve that instead"),
    "a KV connector": (
        {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
        "do not support KV connectors (ExampleConnector)",
    ),
}
COMPILED = (("llama", 4, {}), SPLIT | CACHED | {"enforce_eager": False})


@pytest.fixture(scope="module")
def ask(engines, checkpoint, prompts, eight):
    """Function of cases, which gives the answers of each engine, asked twice; of all prompts where it drafts."""

    def answers(cases):
        given = [
            {
                "model": checkpoint(architecture, layers, own=True, **changes),
                "engine": engine,
                "runs": 2 * [{"prompts": asked(engine, prompts, eight)}],
            }
            for (architecture, layers, changes), engine in cases
        ]
        return [(case["model"], answer) for case, answer in zip(given, engines(given), strict=True)]

    return answers


@pytest.fixture(scope="module")
def answers(ask):
    refused = [(("llama", 4, {}), engine) for engine, _ in REFUSED.values()]
    return dict(zip([*REFUSED, *CASES], ask([*refused, *CASES.values()]), strict=True))


def asked(engine, prompts, eight):
    return prompts if "speculative_config" in engine else eight


def check(folder, answer, compare, prompts):
    assert "error" not in answer, answer
    assert answer["fast_prefill"]
    for run in answer["runs"]:
        compare(folder, prompts, run)


@pytest.mark.parametrize("name", CASES)
def test_equals_huggingface(answers, compare, prompts, eight, name):
    folder, answer = answers[name]
    check(folder, answer, compare, asked(CASES[name][1], prompts, eight))
    if "drafts" in name:
        assert answer["runs"][0]["accepted_drafts"] > 20
    if "enable_prefix_caching" in CASES[name][1]:
        assert max(answer["runs"][1]["cached"]) > 64


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(answers, name):
    _, answer = answers[name]
    assert any(REFUSED[name][1] in line for line in answer["error"].splitlines())


@pytest.mark.slow
def test_compiled(ask, compare, eight):
    ((folder, answer),) = ask([COMPILED])
    assert answer["compilation"] == "DYNAMO_TRACE_ONCE"
    check(folder, answer, compare, eight)
