"""In float32, greedy answers of vLLM are those of the Hugging Face model, in every mode of serving."""

import pytest
import torch
from tests.serve.conftest import FULL_DEPTH, NGRAM

from swiftkv.models import load_any

SPLIT = {"max_num_batched_tokens": 64}  # every longer prompt comes in parts, in batches with decoding rows
CACHED = {"enable_prefix_caching": True, "block_size": 32}
# Fewer layers than other models here have: each is traced by the compiler.
COMPILED = {"fast": ("llama", 2, 2, {}), "own keys and values": ("llama", 2, 1, {"own": True})}


@pytest.fixture(scope="module")
def tails(eight):
    """Prompts that begin like the eight and end like others."""
    return [prompt[: len(prompt) * 2 // 3] + eight[i - 1][-30:] for i, prompt in enumerate(eight)]


@pytest.fixture(scope="module")
def answers(engines, folder, few, eight, tails):
    with_prompts = {"prompts": eight, "prompt_logprobs": 0, "max_tokens": 1}
    # Cold, warm, warm for part of the prompt, and one prompt alone; what is refused, and what follows it.
    fast = [{"prompts": prompts} for prompts in (eight, eight, tails, eight[:1])] + [with_prompts, {"prompts": eight}]
    drafting = SPLIT | CACHED | {"speculative_config": NGRAM}
    cases = {
        "fast": {"model": folder, "engine": SPLIT | CACHED, "runs": fast},
        "full depth": {"model": folder, "engine": SPLIT | FULL_DEPTH, "runs": [with_prompts]},
        # No engine starts after it in this process.
        "drafts": {"model": few, "engine": drafting, "runs": [{"prompts": eight, "max_tokens": 40}]},
    }
    return engines(cases)


def test_fast_prefill_with_a_cold_and_a_warm_prefix_cache(answers, compare, folder, eight, tails):
    answer = answers["fast"]
    assert answer["fast_prefill"] and answer["compilation"] == "NONE"
    # No tensor of the teacher's is held.
    upper = [
        name for name in answer["parameters"] if name.startswith(tuple(f"model.layers.{i}." for i in range(4, 20)))
    ]
    assert len(upper) == 16 * 6  # q_proj_swiftkv, o_proj, gate_up_proj, down_proj and two norms
    assert sum("kv_proj_swiftkv" in name for name in answer["parameters"]) == 1
    for prompts, run in zip((eight, eight, tails, eight[:1]), answer["runs"], strict=False):
        compare(folder, prompts, run)
    cold, warm, partly, *_ = (run["cached"] for run in answer["runs"][:4])
    # Only the chat template's first block may be known already, where a prompt starts after another has ended.
    assert max(cold) <= 32
    # All whole blocks but the one of the last token, which is always computed.
    assert warm == [(len(prompt) - 1) // 32 * 32 for prompt in eight]
    assert all(hit >= len(prompt) * 2 // 3 // 32 * 32 for hit, prompt in zip(partly, eight, strict=True))


def test_n_gram_speculation(answers, compare, few, eight):
    (run,) = answers["drafts"]["runs"]
    assert answers["drafts"]["fast_prefill"]
    compare(few, eight, run)
    assert len(eight) < run["accepted_drafts"] < len(eight) * 39


def test_prompt_logprobs_are_refused_with_fast_prefill_and_the_engine_lives(answers, compare, folder, eight):
    *_, refused, after = answers["fast"]["runs"]
    assert "prompt_logprobs" in refused["error"] and "swiftkv_full_depth" in refused["error"]
    compare(folder, eight, after)


def test_prompt_logprobs_are_right_at_full_depth(answers, folder, eight):
    model, answer = load_any(folder, torch.float32), answers["full depth"]
    assert not answer["fast_prefill"]
    for prompt, logprobs in zip(eight, answer["runs"][0]["prompt_logprobs"], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        expected = expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
        assert logprobs[0] is None
        assert torch.allclose(torch.tensor(logprobs[1:]), expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_compiled(engines, checkpoint, compare, eight):
    engine, cases = SPLIT | CACHED | {"enforce_eager": False}, {}
    for name, (*which, changes) in COMPILED.items():
        folder = checkpoint(*which, num_hidden_layers=6, **changes)
        cases[name] = {"model": folder, "engine": engine, "runs": [{"prompts": eight}] * 2}
    for name, answer in engines(cases).items():
        assert answer["fast_prefill"] and answer["compilation"] == "DYNAMO_TRACE_ONCE"
        for run in answer["runs"]:
            compare(cases[name]["model"], eight, run)
