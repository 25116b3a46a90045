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
def tails(prompts) -> list[list[int]]:
    """Prompts that begin like the 20 and end like others."""
    return [prompt[: len(prompt) * 2 // 3] + prompts[i - 1][-30:] for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def runs(prompts, tails) -> list[dict]:
    """Cold, warm, warm for part of the prompt, and one prompt alone."""
    return [{"prompts": prompts}, {"prompts": prompts}, {"prompts": tails}, {"prompts": prompts[:1]}]


@pytest.fixture(scope="module")
def eager(engines, folder, runs, prompts):
    cases = [{"model": folder, "engine": engine, "runs": runs} for engine in MODES.values()]
    logprobs = [{"prompts": prompts, "prompt_logprobs": 0, "max_tokens": 1}, {"prompts": prompts}]
    cases += [{"model": folder, "engine": WHOLE | mode, "runs": logprobs} for mode in ({}, FULL_DEPTH)]
    return dict(zip([*MODES, "logprobs, fast", "logprobs, full depth"], engines(cases), strict=True))


@pytest.fixture(scope="module")
def compiled(engines, folder, runs):
    return dict(
        zip(COMPILED, engines([{"model": folder, "engine": e, "runs": runs} for e in COMPILED.values()]), strict=True)
    )


def check_all(compare, folder, runs, answer):
    assert "error" not in answer, answer
    for run, given in zip(answer["runs"], runs, strict=True):
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
def test_the_prefix_cache_was_cold_and_then_warm(eager, prompts, tails, mode):
    cold, warm, partly, *_ = (run["cached"] for run in eager[mode]["runs"])
    # Only the chat template's first block may be known already, where a prompt starts after another has ended.
    assert max(cold) <= 32
    # All whole blocks but the one of the last token, which is always computed.
    assert warm == [(len(prompt) - 1) // 32 * 32 for prompt in prompts]
    assert all(hit >= len(prompt) * 2 // 3 // 32 * 32 for hit, prompt in zip(partly, prompts, strict=True))


@pytest.mark.parametrize(
    "batching",
    [pytest.param(SPLIT | CACHED, id="parts"), pytest.param(WHOLE, id="whole", marks=pytest.mark.slow)],
)
def test_n_gram_speculation(engines, checkpoint, compare, prompts, batching):
    # Few possible answers: they recur, so drafts are made, accepted and rejected.
    folder = checkpoint("llama", 4, 4, answers=24)
    case = {"model": folder, "engine": batching | {"speculative_config": NGRAM}}
    (answer,) = engines([case | {"runs": [{"prompts": prompts, "max_tokens": 40}]}])
    assert answer["fast_prefill"]
    (run,) = answer["runs"]
    compare(folder, prompts, run)
    assert 20 < run["accepted_drafts"] < 20 * 39


def test_prompt_logprobs_are_refused_with_fast_prefill_and_the_engine_lives(eager, compare, folder, prompts):
    refused, after = eager["logprobs, fast"]["runs"]
    assert "prompt_logprobs" in refused["error"] and "swiftkv_full_depth" in refused["error"]
    compare(folder, prompts, after)


def test_prompt_logprobs_are_right_at_full_depth(eager, folder, prompts):
    model = load_any(folder, torch.float32)
    given, _ = eager["logprobs, full depth"]["runs"]
    for prompt, logprobs in zip(prompts, given["prompt_logprobs"], strict=True):
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
