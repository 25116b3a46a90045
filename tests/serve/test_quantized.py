"""Checkpoints quantized as the published 8B-FP8: channel-wise float8 weights, activations by token, by compressed-tensors."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftkv.models import load_any, load_base, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec
from tests.quantized import quantize
from tests.serve.conftest import reference


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
    return made | {"saved": (new / "saved-q", None)}


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    cases = [{"model": folder, "runs": [{"prompts": prompts, "max_tokens": 1}]} for folder, _ in folders.values()]
    weights = load_file(folders["llama"][0] / "model.safetensors")
    del weights["model.layers.2.self_attn.v_proj_swiftkv.weight_scale"]
    broken = folders["llama"][0].with_name("no-scale")
    shutil.copytree(folders["llama"][0], broken)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    return dict(zip([*folders, "no scale"], engines([*cases, {"model": broken}]), strict=True))


@pytest.mark.parametrize("name", ["llama", "qwen2, groups of 2", "saved"])
def test_equals_the_same_arithmetic_in_huggingface(answers, folders, prompts, name):
    answer = answers[name]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    given = torch.tensor(run["logprobs"])

    def difference(folder):
        model = load_any(folder, torch.float32)
        pairs = zip(prompts, run["tokens"], strict=True)
        return (torch.stack([reference(model, prompt, tokens)[2] for prompt, tokens in pairs]) - given).abs()

    quantized, plain = folders[name]
    same = difference(quantized)
    # Equal, but where a value lies between two float8 numbers and rounds the other way, which later layers carry on.
    assert same.median() < 1e-4
    # Activations are really rounded: without that, the difference is far larger.
    assert plain is None or difference(plain).mean() > 10 * same.mean()


def test_weights_stay_in_eight_bits_and_no_teacher_tensor_is_held(answers):
    parameters = answers["llama"]["parameters"]
    assert "model.caches.kv_proj_swiftkv.weight_scale" in parameters
    upper = tuple(f"model.layers.{layer}." for layer in range(2, 4))
    assert not [name for name in parameters if name.startswith(upper) and "qkv_proj" in name]


def test_a_missing_scale_is_named(answers):
    assert "model.layers.2.self_attn.v_proj_swiftkv.weight_scale" in answers["no scale"]["error"]
