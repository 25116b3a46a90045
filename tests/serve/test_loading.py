"""Checkpoints of every permitted form load; real weights give Hugging Face's answers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftkv.models import load_swiftkv

pytestmark = pytest.mark.thorough

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def folders(checkpoint, smollm2_swiftkv, tokenizer, tmp_path_factory):
    new = tmp_path_factory.mktemp("forms")
    plain = checkpoint("llama", 10, 4, tie_word_embeddings=True)
    load_swiftkv(plain, torch.float32).save_pretrained(new / "sharded", max_shard_size="1MB")
    tokenizer.save_pretrained(new / "sharded")
    assert len(list((new / "sharded").glob("model-*.safetensors"))) > 3

    # Some exporters write the tied head as well, and old ones the rotary embedding's table.
    load_swiftkv(plain, torch.float32).save_pretrained(new / "superfluous")
    tokenizer.save_pretrained(new / "superfluous")
    weights = load_file(new / "superfluous" / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(weights, new / "superfluous" / "model.safetensors", metadata={"format": "pt"})

    # Serving does not exit early.
    load_swiftkv(plain, torch.float32).save_pretrained(new / "early_exit")
    tokenizer.save_pretrained(new / "early_exit")
    weights = load_file(new / "early_exit" / "model.safetensors")
    weights["early_exit_head_swiftkv.weight"] = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file(weights, new / "early_exit" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((new / "early_exit" / "config.json").read_text())
    (new / "early_exit" / "config.json").write_text(json.dumps(config | {"swiftkv_early_exit": True}))
    assert load_swiftkv(new / "early_exit").spec.early_exit

    return {
        "without the teacher's projections": plain,
        "with the teacher's projections": checkpoint("llama", 10, 4, keep_teacher_qkv=True, tie_word_embeddings=True),
        "sharded": new / "sharded",
        "superfluous tensors": new / "superfluous",
        "early exit head": new / "early_exit",
        "dummy": plain,
        "smollm2": smollm2_swiftkv,
    }


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    arguments = {
        "dummy": {"load_format": "dummy"},
        # Repetitive answers, so that drafts are accepted. A process can start no engine after one with n-grams.
        "smollm2": {"speculative_config": NGRAM, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**28},
    }
    cases = [
        {
            "model": folder,
            "engine": arguments.get(name, {}),
            "runs": [{"prompts": prompts, "max_tokens": 24} if name == "smollm2" else {"prompts": prompts}],
        }
        for name, folder in folders.items()
    ]
    return dict(zip(folders, engines(cases), strict=True))


@pytest.mark.parametrize(
    "name", ["with the teacher's projections", "sharded", "superfluous tensors", "early exit head"]
)
def test_every_form_gives_the_same_answers(answers, compare, folders, prompts, name):
    expected = answers["without the teacher's projections"]
    assert "error" not in answers[name], answers[name]
    assert answers[name]["runs"] == expected["runs"]
    assert answers[name]["parameters"] == expected["parameters"]


def test_the_compared_answers_are_right(answers, compare, folders, prompts):
    name = "without the teacher's projections"
    compare(folders[name], prompts, answers[name]["runs"][0])


def test_dummy_weights_need_no_file_but_config(answers):
    answer = answers["dummy"]
    assert "error" not in answer, answer
    assert answer["parameters"] == answers["sharded"]["parameters"]
    assert [len(tokens) for tokens in answer["runs"][0]["tokens"]] == [12] * 20


def test_smollm2_with_n_gram_speculation(answers, compare, folders, prompts):
    (run,) = answers["smollm2"]["runs"]
    compare(folders["smollm2"], prompts, run)
    assert run["accepted_drafts"] > 20
