"""Checkpoints quantized as the published 8B-FP8 (channel-wise float8 weights, activations by token, by compressed-tensors),
in 4 bits and in float8 in blocks, as the usual tools write them, and with calibrated float8 caches."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.quantized import FORMS, QUANTIZATION, quantize, write
from tests.serve.conftest import reference

from swiftkv.models import load_any, load_base, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def folders(checkpoint, tokenizer, tmp_path_factory):
    """name: (quantized, dequantized or None). With the teacher's unused q/k/v, as published, and a SwiftKV bias to place."""
    new = tmp_path_factory.mktemp("quantized")
    made = {
        "llama": checkpoint("llama", 2, 1, keep_teacher_qkv=True, num_hidden_layers=4),
        "qwen2, groups of 2": checkpoint("qwen2", 1, 2, random_bias=True, num_hidden_layers=4),
    }
    for name, folder in made.items():
        quantize(folder, new / f"{name}-q", new / f"{name}-plain")
    # What distillation of an FP8 model saves: its weights, and the new projections quantized with them.
    base = checkpoint("llama", None, num_hidden_layers=4)
    quantize(base, new / "base-q", new / "base-plain")
    model = rewire(load_base(new / "base-q", torch.float32), SwiftKVSpec(4, 2, 2))
    save_swiftkv(model, new / "saved-q", tokenizer=tokenizer)
    made = {name: (new / f"{name}-q", new / f"{name}-plain") for name in made}
    for name, form in FORMS.items():
        made[name] = new / name, new / f"{name}-plain"
        write(checkpoint("llama", 2, 2, num_hidden_layers=4), *made[name], *form)
    for name, scale in CALIBRATED.items():
        made[name] = calibrated(made["llama"][0], new / name.replace(" ", "-"), scale), None
    return made | {"saved": (new / "saved-q", None)}


# By how much keys and values are divided before they are rounded to float8.
CALIBRATED = {"caches": 1.0, "finer caches": 0.5, "caches of 16 bits": 0.5}


def calibrated(folder, to, scale):
    """A copy whose caches are of float8, with scales for each layer as llm-compressor names them."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    for layer in range(4):
        weights |= {f"model.layers.{layer}.self_attn.{of}_scale": torch.tensor([scale]) for of in "kv"}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    config["quantization_config"] = QUANTIZATION | {"kv_cache_scheme": scheme}
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    engine = dict.fromkeys([*FORMS, *CALIBRATED], {"dtype": "bfloat16"})  # what the kernels are made for
    engine["caches of 16 bits"] = {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    one = {"prompts": prompts, "max_tokens": 1}
    cases = [
        {
            "model": folder,
            "engine": engine.get(name, {}),
            "runs": [one | ({"only": [300]} if name in CALIBRATED else {})],  # of one token, the same for all
        }
        for name, (folder, _) in folders.items()
    ]
    weights = load_file(folders["llama"][0] / "model.safetensors")
    del weights["model.layers.2.self_attn.v_proj_swiftkv.weight_scale"]
    broken = folders["llama"][0].with_name("no-scale")
    shutil.copytree(folders["llama"][0], broken)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    return dict(zip([*folders, "no scale"], engines([*cases, {"model": broken}], "block_scaled.py"), strict=True))


@pytest.mark.parametrize("name", ["llama", "qwen2, groups of 2", "saved"])
def test_equals_the_same_arithmetic_in_huggingface(answers, folders, prompts, name):
    answer = answers[name]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    quantized, plain = folders[name]
    same = difference(run, quantized, prompts)
    # Equal, but where a value lies between two float8 numbers and rounds the other way, which later layers carry on.
    assert same.median() < 1e-4
    # Activations are really rounded: without that, the difference is far larger.
    assert plain is None or difference(run, plain, prompts).mean() > 10 * same.mean()


def difference(run, folder, prompts):
    """Of the log-probabilities of a run from those of Hugging Face with a checkpoint."""
    model = load_any(folder, torch.float32)
    pairs = zip(prompts, run["tokens"], strict=True)
    expected = torch.stack([reference(model, prompt, tokens)[2] for prompt, tokens in pairs])
    return (expected - torch.tensor(run["logprobs"])).abs()


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_what_they_stand_for(answers, folders, checkpoint, prompts, name):
    answer = answers[name]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    # Up to the rounding of bfloat16, which is much finer than that to 4 bits.
    unrounded = difference(run, checkpoint("llama", 2, 2, num_hidden_layers=4), prompts)
    rounded = difference(run, folders[name][1], prompts)
    assert rounded.mean() < unrounded.mean() / 4


def test_layers_read_a_cache_with_the_scales_it_was_written_with(answers):
    """Powers of two change little of float8 but the exponent; with scales that differ, readers would be far off."""
    assert not [name for name in CALIBRATED if "error" in answers[name]], answers
    plain, finer, exact = (torch.tensor(answers[name]["runs"][0]["logprobs"]) for name in CALIBRATED)
    assert 0 < (finer - plain).abs().mean() < (exact - plain).abs().mean()


def test_weights_stay_in_eight_bits_and_no_teacher_tensor_is_held(answers):
    parameters = answers["llama"]["parameters"]
    assert "model.caches.kv_proj_swiftkv.weight_scale" in parameters
    upper = tuple(f"model.layers.{layer}." for layer in range(2, 4))
    assert not [name for name in parameters if name.startswith(upper) and "qkv_proj" in name]


def test_a_missing_scale_is_named(answers):
    assert "model.layers.2.self_attn.v_proj_swiftkv.weight_scale" in answers["no scale"]["error"]
