"""Checkpoints quantized as the published 8B-FP8: channel-wise float8 weights, activations by token, by compressed-tensors."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftkv.models import load_any
from tests.serve.conftest import reference

ACTIVATIONS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": WEIGHTS,
            "input_activations": ACTIVATIONS,
            "output_activations": None,
        }
    },
}


def quantize(folder, to, back):
    """Write the checkpoint in float8 with scales to `to`, and what that stands for in ordinary numbers to `back`."""
    shutil.copytree(folder, to)
    shutil.copytree(folder, back)
    weights, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        weights[name] = plain[name] = tensor
        if name.endswith("_proj.weight") or "_proj_swiftkv.weight" in name:
            scale = tensor.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
            weights[name] = (tensor / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale"] = scale
            plain[name] = weights[name].float() * scale
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, back / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}))


def quantized_activations(model):
    """Make every quantized layer of a Hugging Face model round its input, by token, as the engine does."""

    def hook(module, inputs):
        states = inputs[0]
        scale = states.abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        return ((states / scale).to(torch.float8_e4m3fn).to(states.dtype) * scale, *inputs[1:])

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(hook)
    return model


@pytest.fixture(scope="module")
def folders(checkpoint, tmp_path_factory):
    """name: (quantized, dequantized). With the teacher's unused q/k/v, as published, and a SwiftKV bias to place."""
    new = tmp_path_factory.mktemp("quantized")
    made = {
        "llama": checkpoint("llama", 2, 1, keep_teacher_qkv=True, num_hidden_layers=4),
        "qwen2, groups of 2": checkpoint("qwen2", 1, 2, random_bias=True, num_hidden_layers=4),
    }
    for name, folder in made.items():
        quantize(folder, new / f"{name}-q", new / f"{name}-plain")
    return {name: (new / f"{name}-q", new / f"{name}-plain") for name in made}


@pytest.fixture(scope="module")
def answers(engines, folders, prompts):
    cases = [{"model": folder, "runs": [{"prompts": prompts, "max_tokens": 1}]} for folder, _ in folders.values()]
    weights = load_file(folders["llama"][0] / "model.safetensors")
    del weights["model.layers.2.self_attn.v_proj_swiftkv.weight_scale"]
    broken = folders["llama"][0].with_name("no-scale")
    shutil.copytree(folders["llama"][0], broken)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    return dict(zip([*folders, "no scale"], engines([*cases, {"model": broken}]), strict=True))


@pytest.mark.parametrize("name", ["llama", "qwen2, groups of 2"])
def test_equals_the_same_arithmetic_in_huggingface(answers, folders, prompts, name):
    answer = answers[name]
    assert "error" not in answer, answer
    (run,) = answer["runs"]
    exact = load_any(folders[name][1], torch.float32)
    plain = [reference(exact, prompt, tokens)[2] for prompt, tokens in zip(prompts, run["tokens"], strict=True)]
    rounded = quantized_activations(exact)
    same = [reference(rounded, prompt, tokens)[2] for prompt, tokens in zip(prompts, run["tokens"], strict=True)]
    given = torch.tensor(run["logprobs"])
    plain, same = (torch.stack(values) - given for values in (plain, same))
    # Equal, but where a value lies between two float8 numbers and rounds the other way, which later layers carry on.
    assert same.abs().median() < 1e-4
    # Activations are really rounded: without that, the difference is far larger.
    assert plain.abs().mean() > 10 * same.abs().mean()


def test_weights_stay_in_eight_bits_and_no_teacher_tensor_is_held(answers):
    parameters = answers["llama"]["parameters"]
    assert "model.caches.kv_proj_swiftkv.weight_scale" in parameters
    upper = tuple(f"model.layers.{layer}." for layer in range(2, 4))
    assert not [name for name in parameters if name.startswith(upper) and "qkv_proj" in name]


def test_a_missing_scale_is_named(answers):
    assert "model.layers.2.self_attn.v_proj_swiftkv.weight_scale" in answers["no scale"]["error"]
