"""The FP8 form of a checkpoint, made without the code under test."""

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
