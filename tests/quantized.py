"""Checkpoints in float8 and in 4 bits, in the forms of the usual tools, made without the code under test."""

import shutil

import torch
from safetensors.torch import load_file, save_file

from swiftkv.io import read_json, write_json

NUMBERS = {"num_bits": 8, "type": "float", "symmetric": True}
GROUP = {
    "targets": ["Linear"],
    "weights": NUMBERS | {"strategy": "channel", "dynamic": False},
    "input_activations": NUMBERS | {"strategy": "token", "dynamic": True},
    "output_activations": None,
}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {"group_0": GROUP},
}
INTEGERS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FOUR_BITS = QUANTIZATION | {
    "format": "pack-quantized",
    "config_groups": {"group_0": GROUP | {"weights": INTEGERS, "input_activations": None}},
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "checkpoint_format": "gptq",
}


def quantize(folder, to, back):
    """Write the checkpoint in float8 with scales to `to`, and what that stands for in ordinary numbers to `back`."""
    write(folder, to, back, in_float8, QUANTIZATION)


def in_float8(name, tensor):
    """Tensors of the checkpoint, and the weight they stand for."""
    scale = tensor.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    rounded = (tensor / scale).to(torch.float8_e4m3fn)
    return {name: rounded, f"{name}_scale": scale}, rounded.float() * scale


def in_four_bits(name, tensor):
    """As `in_float8`, a scale for 32 inputs."""
    numbers, scale = symmetric(tensor)
    packed = {f"{name}_packed": words(numbers), f"{name}_scale": scale, f"{name}_shape": torch.tensor(tensor.shape)}
    return packed, spread(scale, numbers) * (numbers - 8)


def as_gptq(name, tensor):
    """As `in_four_bits`, inputs first; the number that stands for zero is less by one."""
    numbers, scale = symmetric(tensor)
    packed = {
        "qweight": words(numbers).t(),
        "qzeros": words(torch.full_like(scale.t(), 7)),
        "scales": scale.t().half(),
        "g_idx": torch.arange(tensor.size(1), dtype=torch.int32) // 32,
    }
    return under(name, packed), spread(scale, numbers) * (numbers - 8)


def as_awq(name, tensor):
    """As `in_four_bits`, inputs first, from the least weight to the largest; words are of eight outputs, even ones first."""
    groups = tensor.unflatten(1, (-1, 32))
    least, largest = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = (largest - least) / 15
    zero = (-least / scale).round()
    numbers = (tensor / spread(scale, tensor) + spread(zero, tensor)).round().clamp(0, 15)
    even_first = [0, 2, 4, 6, 1, 3, 5, 7]
    packed = {
        "qweight": words(numbers.t(), even_first),
        "qzeros": words(zero.t(), even_first),
        "scales": scale.t().half(),
    }
    return under(name, packed), (numbers - spread(zero, tensor)) * spread(scale, tensor)


def symmetric(tensor):
    """Numbers from 1 to 15, 8 for zero, and the scale of 32 inputs."""
    scale = tensor.unflatten(1, (-1, 32)).abs().amax(2) / 7
    return (tensor / spread(scale, tensor)).round() + 8, scale


def spread(scale, tensor):
    return scale.repeat_interleave(tensor.size(1) // scale.size(1), 1)


def words(numbers, order=range(8)):
    """Eight numbers are one word, the first of `order` in its lowest bits."""
    of_eight = numbers.long().unflatten(1, (-1, 8))[..., list(order)]
    return (of_eight << 4 * torch.arange(8)).sum(2).to(torch.uint32).view(torch.int32)


def under(name, tensors):
    return {name.removesuffix("weight") + kind: tensor.contiguous() for kind, tensor in tensors.items()}


FORMS = {
    "compressed-tensors": (in_four_bits, FOUR_BITS),
    "AWQ": (as_awq, AWQ),
    "GPTQ": (as_gptq, GPTQ),
}


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
    config = read_json(to / "config.json")
    write_json(to / "config.json", config | {"quantization_config": quantization})
