"""In float32, greedy answers of vLLM are those of the Hugging Face model, in every mode of serving."""

import pytest
import torch

from swiftkv.models import load_any

FULL_DEPTH = {"additional_config": {"swiftkv_full_depth": True}}
SPLIT = {"max_num_batched_tokens": 64}  # every longer prompt comes in parts, in batches with decoding rows
WHOLE = {"max_num_batched_tokens": 2048}
CACHED = {"enable_prefix_caching": True, "block_size": 32}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
MODES = {
    "fast": WHOLE | CACHED,
    "fast, prompts in parts": SPLIT | CACHED,
    "full depth": WHOLE | CACHED | FULL_DEPTH,
    "full depth, prompts in parts": SPLIT | FULL_DEPTH,
}
COMPILED = {
    "fast": SPLIT | CACHED | {"enforce_eager": False},
    "full depth": WHOLE | FULL_DEPTH | {"enforce_eager": False},
}


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama", 4, 4)


@pytest.fixture(scope="module")
def few(checkpoint):
    """A model with few possible answers: they recur, so drafts are made, accepted and rejected."""
    return checkpoint("llama", 4, 4, answers=24)


@pytest.fixture(scope="module")
def tails(eight) -> list[list[int]]:
    """Prompts that begin like the eight and end like others."""
    return [prompt[: len(prompt) * 2 // 3] + eight[i - 1][-30:] for i, prompt in enumerate(eight)]


@pytest.fixture(scope="module")
def runs(eight, tails) -> list[dict]:
    """Cold, warm, warm for part of the prompt, and one prompt alone."""
    return [{"prompts": eight}, {"prompts": eight}, {"prompts": tails}, {"prompts": eight[:1]}]


@pytest.fixture(scope="module")
def eager(engines, folder, few, runs, eight):
    """Answers of each of MODES, at last with prompt log-probabilities asked for, and of one that speculates."""
    runs = [*runs, {"prompts": eight, "prompt_logprobs": 0, "max_tokens": 1}, {"prompts": eight}]
    cases = [{"model": folder, "engine": engine, "runs": runs} for engine in MODES.values()]
    cases.append(drafting(few, SPLIT | CACHED, eight))  # no engine starts after it in this process
    return dict(zip([*MODES, "drafts"], engines(cases), strict=True))


def drafting(folder, batching, prompts):
    """A case with speculation by n-grams."""
    engine = batching | {"speculative_config": NGRAM}
    return {"model": folder, "engine": engine, "runs": [{"prompts": prompts, "max_tokens": 40}]}


@pytest.fixture(scope="module")
def compiled(engines, folder, runs):
    return dict(
        zip(COMPILED, engines([{"model": folder, "engine": e, "runs": runs} for e in COMPILED.values()]), strict=True)
    )


def check_all(compare, folder, runs, answer):
    assert "error" not in answer, answer
    for run, given in zip(answer["runs"], runs, strict=False):
        compare(folder, given["prompts"], run)


@pytest.mark.parametrize("mode", MODES)
def test_eager_modes(eager, compare, folder, runs, mode):
    answer = eager[mode]
    assert answer["fast_prefill"] == mode.startswith("fast") and answer["compilation"] == "NONE"
    check_all(compare, folder, runs, answer)


@pytest.mark.slow
@pytest.mark.parametrize("mode", COMPILED)
def test_compiled_modes(compiled, compare, folder, runs, mode):
    answer = compiled[mode]
    assert answer["fast_prefill"] == (mode == "fast") and answer["compilation"] == "DYNAMO_TRACE_ONCE"
    check_all(compare, folder, runs, answer)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "enable_prefix_caching" in MODES[mode]])
def test_the_prefix_cache_was_cold_and_then_warm(eager, eight, tails, mode):
    cold, warm, partly, *_ = (run["cached"] for run in eager[mode]["runs"][:4])
    # Only the chat template's first block may be known already, where a prompt starts after another has ended.
    assert max(cold) <= 32
    # All whole blocks but the one of the last token, which is always computed.
    assert warm == [(len(prompt) - 1) // 32 * 32 for prompt in eight]
    assert all(hit >= len(prompt) * 2 // 3 // 32 * 32 for hit, prompt in zip(partly, eight, strict=True))


def check_drafts(compare, folder, prompts, answer):
    assert "error" not in answer, answer
    assert answer["fast_prefill"]
    (run,) = answer["runs"]
    compare(folder, prompts, run)
    assert len(prompts) < run["accepted_drafts"] < len(prompts) * 39


def test_n_gram_speculation(eager, compare, few, eight):
    check_drafts(compare, few, eight, eager["drafts"])


@pytest.mark.slow
def test_n_gram_speculation_on_whole_prompts(engines, compare, few, prompts):
    (answer,) = engines([drafting(few, WHOLE, prompts)])
    check_drafts(compare, few, prompts, answer)


def test_prompt_logprobs_are_refused_with_fast_prefill_and_the_engine_lives(eager, compare, folder, eight):
    *_, refused, after = eager["fast"]["runs"]
    assert "prompt_logprobs" in refused["error"] and "swiftkv_full_depth" in refused["error"]
    compare(folder, eight, after)


def test_prompt_logprobs_are_right_at_full_depth(eager, folder, eight):
    model = load_any(folder, torch.float32)
    *_, given, _ = eager["full depth"]["runs"]
    for prompt, logprobs in zip(eight, given["prompt_logprobs"], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        expected = expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert logprobs[0] is None
        assert torch.allclose(torch.tensor(logprobs[1:]), expected, rtol=0, atol=1e-3)


def test_no_teacher_tensor_is_held(eager):
    names = eager["fast"]["parameters"]
    upper = [name for name in names if name.startswith(tuple(f"model.layers.{i}." for i in range(4, 20)))]
    assert len(upper) == 16 * 6  # q_proj_swiftkv, o_proj, gate_up_proj, down_proj and two norms
    assert not [name for name in upper if any(part in name for part in ("qkv_proj", ".q_proj.", "k_proj", "v_proj"))]
    assert sum("kv_proj_swiftkv" in name for name in names) == 1
