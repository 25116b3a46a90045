"""Checkpoints in FP8 and in 4 bits, made without the code under test."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

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
FOUR_BITS = QUANTIZATION | {
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
            "input_activations": None,
            "output_activations": None,
        }
    },
}


def quantize(folder, to, back):
    """Write the checkpoint in float8 with scales to `to`, and what that stands for in ordinary numbers to `back`."""
    write(folder, to, back, in_float8, QUANTIZATION)


def pack(folder, to, back):
    """As `quantize`, in 4 bits with a scale for 32 inputs."""
    write(folder, to, back, in_four_bits, FOUR_BITS)


def in_float8(name, tensor):
    """Tensors of the checkpoint, and the weight they stand for."""
    scale = tensor.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    rounded = (tensor / scale).to(torch.float8_e4m3fn)
    return {name: rounded, f"{name}_scale": scale}, rounded.float() * scale


def in_four_bits(name, tensor):
    """As `in_float8`; eight inputs are one word, the first in its lowest bits."""
    groups = tensor.unflatten(1, (-1, 32))
    scale = groups.abs().amax(2, keepdim=True) / 7
    rounded = (groups / scale).round()
    words = ((rounded.long() + 8).reshape(len(tensor), -1, 8) << 4 * torch.arange(8)).sum(2)
    packed = {
        f"{name}_packed": words.to(torch.uint32).view(torch.int32),
        f"{name}_scale": scale.flatten(1),
        f"{name}_shape": torch.tensor(tensor.shape),
    }
    return packed, (rounded * scale).flatten(1)


def write(folder, to, back, form, quantization):
    """Write what `form` makes of each linear layer but the head, and the ordinary checkpoint it stands for."""
    shutil.copytree(folder, to)
    shutil.copytree(folder, back)
    weights, plain = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith("_proj.weight") or "_proj_swiftkv.weight" in name:
            stored, plain[name] = form(name, tensor)
            weights |= stored
        else:
            weights[name] = plain[name] = tensor
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, back / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
