"""The published SwiftKV checkpoints as headers: configuration, and name, shape and dtype of every tensor. No weight is here.

**None of their files was read.** The configurations are those that the hub's pages show, but for some fields of default values;
of the 405B's the page was cut after `quantization_config`, and what follows is taken from the 8B's. The tensors are derived from
the modules of the reference implementation. In November 2026 they agreed with all that the hub's file lists say: how many files
there are, what each weighs, and the length of the index. Sizes leave open the dtype of norms and scales, here the embedding's.
"""

import torch
from safetensors.torch import save_file
from tests.programs import ROOT

from swiftkv.io import read_json, write_json

FP8 = torch.float8_e4m3fn
LLAMA_8B_FP8 = read_json(ROOT / "tests/unit/configs/llama-3.1-swiftkv-8b-instruct-fp8.json")
FP8_DYNAMIC = {
    key: value for key, value in LLAMA_8B_FP8["quantization_config"].items() if key != "global_compression_ratio"
}
LLAMA_8B = {key: value for key, value in LLAMA_8B_FP8.items() if key != "quantization_config"}
LLAMA_8B |= {"_name_or_path": "/data-fast/llama-3.1-8b-instruct"}


# Their configurations; all tensors but FP8 weights are of `torch_dtype`.
CHECKPOINTS = {
    # https://huggingface.co/Snowflake/Llama-3.1-SwiftKV-8B-Instruct/tree/3182bfb09587a6724f463cffabc5fdb12ab07ef4
    "8B": LLAMA_8B,
    # .../tree/main, since August 2025
    "8B in 16 bits": LLAMA_8B | {"torch_dtype": "bfloat16"},
    # https://huggingface.co/Snowflake/Llama-3.1-SwiftKV-8B-Instruct-FP8/tree/main
    "8B-FP8": LLAMA_8B_FP8,
    # https://huggingface.co/Snowflake/Llama-3.1-SwiftKV-405B-Instruct-FP8/tree/7dcd17b12ae8bb783ca3ee72d91b2942b641bb7a
    "405B-FP8": LLAMA_8B | {"quantization_config": FP8_DYNAMIC, "torch_dtype": "bfloat16"},
}
# A model of 6 layers in the same form.
TINY = dict(
    bos_token_id=1,
    eos_token_id=[2, 3],
    head_dim=8,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=8,
    num_hidden_layers=6,
    num_key_value_heads=4,
    num_key_value_layers=3,
    vocab_size=128,
)


def tensors(config, dtype, teacher_qkv=True):
    """Name, shape and dtype (of all but FP8 weights) of every tensor, written out here independently of the models.

    `teacher_qkv`: with the teacher's projections of layers >= l, as all published ones are.
    """
    hidden, inner, heads = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    size = config.get("head_dim", hidden // heads)
    rows = {"q": heads * size, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}
    first, group = config["num_key_value_layers"], config["key_value_group_size"]
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        attention, layer = f"model.layers.{index}.self_attn", f"model.layers.{index}"
        if index < first or teacher_qkv:
            shapes |= {f"{attention}.{name}_proj": (count, hidden) for name, count in rows.items()}
        shapes[f"{attention}.o_proj"] = (hidden, heads * size)
        if index >= first:
            own = rows if (index - first) % group == 0 else {"q": rows["q"]}
            shapes |= {f"{attention}.{name}_proj_swiftkv": (count, hidden) for name, count in own.items()}
        shapes |= {f"{layer}.mlp.gate_proj": (inner, hidden), f"{layer}.mlp.up_proj": (inner, hidden)}
        shapes |= {f"{layer}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"{layer}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
    shapes |= {"model.norm": (hidden,), "model.norm_swiftkv": (hidden,), "lm_head": (config["vocab_size"], hidden)}
    made = {}
    for name, shape in shapes.items():
        eight_bit = "quantization_config" in config and "_proj" in name
        made[f"{name}.weight"] = torch.empty(shape, dtype=FP8 if eight_bit else dtype, device="meta")
        if eight_bit:
            made[f"{name}.weight_scale"] = torch.empty(shape[0], 1, dtype=dtype, device="meta")
    return made


def random_like(tensors):
    """Numbers of a size that answers differ with: norms around 1, FP8 weights with scales that make them alike."""
    generator = torch.Generator().manual_seed(4)
    made = {}
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator) / 8 + (tensor.ndim == 1)
        made[name] = (noise.abs() / 64 if name.endswith("_scale") else noise * 64 if tensor.dtype == FP8 else noise).to(
            tensor.dtype
        )
    return made


def write(folder, config, tensors, files=1):
    """A checkpoint of `files` files with an index, or of one without."""
    folder.mkdir()
    write_json(folder / "config.json", config)
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    listed = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        mine = sorted(tensors)[number::files]
        save_file({name: tensors[name] for name in mine}, folder / file, metadata={"format": "pt"})
        listed |= dict.fromkeys(mine, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": listed})
    return folder
