"""Features of vLLM that look at the rows with logits: the same with fast prefill as at full depth, and as they should."""

from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.conftest import FULL_DEPTH, NGRAM

from swiftkv.io import write_json

pytestmark = pytest.mark.thorough

WHOLE = {"max_num_batched_tokens": 2048, "block_size": 32}
ENGINE = WHOLE | {"enable_prefix_caching": True, "enable_prompt_embeds": True}
PARTS = {"max_num_batched_tokens": 64, "block_size": 32}
EIGHT = {"max_tokens": 8}
THREE = {"num_speculative_tokens": 3}
DRAFTERS = {
    "a class": {"method": "custom_class", "model": "drafters.RepeatLast", **THREE},
    "suffix trees": {"method": "suffix", **THREE},
}
SETTINGS = {
    "greedy": EIGHT | {"logprobs": 5},
    "several answers": EIGHT | {"n": 3, "temperature": 1.0, "seed": 7},
    "penalties": EIGHT | {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "regex": {"max_tokens": 24, "structured": {"regex": "[0-9]{3}-[a-f]{4}"}, "ignore_eos": False},
    "beams": {"beam_width": 3, "max_tokens": 4},
    "embedded": EIGHT | {"embedded": True},
}


@pytest.fixture(scope="module")
def heads(few, tmp_path_factory):
    """Medusa heads that guess the token just chosen, three times: the model's own head, whose layer before adds nothing."""
    folder = tmp_path_factory.mktemp("medusa")
    head = load_file(few / "model.safetensors")["lm_head.weight"]
    vocabulary, hidden = head.shape
    weights = {f"lm_heads.{number}.weight": head.clone() for number in range(3)}
    weights |= {f"blocks.{number}.layers.0.weight": torch.zeros(hidden, hidden) for number in range(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "medusa", "vocab_size": vocabulary, "hidden_size": hidden, "num_heads": 3}
    write_json(folder / "config.json", config | {"num_hidden_layers": 1})
    return str(folder)


@pytest.fixture(scope="module")
def answers(engines, folder, few, heads, eight, tmp_path_factory):
    runs = [{"prompts": eight[4:]} | settings for settings in SETTINGS.values()]
    # Room for some of the requests only: later ones push earlier ones out, which then are computed again.
    scarce = PARTS | {"num_gpu_blocks_override": 20}
    long = {"prompts": [max(eight, key=len)], "max_tokens": 8}
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path_factory.mktemp("shared"))},
    }
    saving, loading = (
        {"kv_transfer_config": connector | {"kv_role": f"kv_{role}"}} for role in ("producer", "consumer")
    )
    cases = {
        "saving": (folder, WHOLE | saving, [{"prompts": eight}]),
        "loading": (folder, WHOLE | loading, [{"prompts": eight}]),
        "fast": (folder, ENGINE, runs),
        "full depth": (folder, ENGINE | FULL_DEPTH, runs),
        "preempted": (folder, scarce, [{"prompts": eight, "max_tokens": 24}, long]),
        **{
            name: (few, PARTS | {"speculative_config": drafter}, [{"prompts": eight, "max_tokens": 24}])
            for name, drafter in (DRAFTERS | {"Medusa": {"method": "medusa", "model": heads, **THREE}}).items()
        },
    }
    return engines(
        {
            name: {"model": model, "engine": engine, "runs": runs, "pretend": name}
            for name, (model, engine, runs) in cases.items()
        }
    )


@pytest.fixture(scope="module")
def by_settings(answers):
    assert answers["fast"]["fast_prefill"] and not answers["full depth"]["fast_prefill"]
    pairs = zip(answers["fast"]["runs"], answers["full depth"]["runs"], strict=True)
    return dict(zip(SETTINGS, pairs, strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_full_depth(by_settings, name):
    fast, full = by_settings[name]
    assert fast["all_tokens"] == full["all_tokens"]
    # Settings that do nothing would prove nothing.
    plain = by_settings["greedy"][0]["all_tokens"]
    assert (fast["all_tokens"] == plain) == (name in ("greedy", "embedded"))


def test_preempted_requests_equal_huggingface(answers, folder, eight, compare):
    run, _ = answers["preempted"]["runs"]
    assert run["preemptions"] > 0
    compare(folder, eight, run)


def test_the_upper_half_runs_where_a_token_is_sampled(answers, folder, eight, compare):
    _, run = answers["preempted"]["runs"]
    prompt = max(eight, key=len)
    parts = -(-len(prompt) // PARTS["max_num_batched_tokens"])
    assert parts > 3
    sampled = [[len(prompt) - 1 + token] for token in range(8)]
    assert [step["upper"] for step in run["steps"]] == [[]] * (parts - 1) + sampled
    compare(folder, [prompt], run)


@pytest.mark.parametrize("name", ["Medusa", *DRAFTERS])
def test_drafts_of_repeated_tokens_are_verified(answers, few, eight, compare, name):
    """Medusa's heads guess repeats only if the states they read are those that tokens are chosen from."""
    (run,) = answers[name]["runs"]
    assert answers[name]["fast_prefill"]
    compare(few, eight, run)
    again = sum(one == other for tokens in run["tokens"] for one, other in pairwise(tokens))
    assert run["accepted_drafts"] > again / 2


def test_a_prompt_whose_caches_a_connector_restores_equals_huggingface(answers, folder, eight, compare):
    (saved,), (loaded,) = (answers[name]["runs"] for name in ("saving", "loading"))
    compare(folder, eight, saved)
    compare(folder, eight, loaded)
    assert not any(saved["cached"])
    assert loaded["cached"] == [(len(prompt) - 1) // 32 * 32 for prompt in eight]


def test_greedy_answers_beside_sampled_ones_with_speculation(engines, few, eight):
    """As without speculation, once vLLM 0.32 does not divide logits by temperatures that it never wrote."""
    each = [{"structured": {"regex": "[0-9]{8}-[a-f]{16}"}}, {}, {"n": 2, "temperature": 0.7, "seed": 1}]
    case = {"model": few, "runs": [{"prompts": eight[:3], "max_tokens": 40, "each": each}], "pretend": "expands"}
    drafting = WHOLE | {"speculative_config": NGRAM}
    found = {}
    # In a process of its own each: after n-gram speculation vLLM 0.32 starts no engine.
    for name, engine in {"alone": WHOLE, "drafts": drafting, "at full depth": drafting | FULL_DEPTH}.items():
        found |= engines({name: case | {"engine": engine}})
    alone, drafts, full = (answer["runs"][0] for answer in found.values())
    assert alone["tokens"][:2] == drafts["tokens"][:2] == full["tokens"][:2]
    assert drafts["accepted_drafts"] > 0
