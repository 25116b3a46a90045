"""DeepSeek-V2: its cache, its checkpoints, and what it is refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.programs import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from swiftkv.cost import parameter_count
from swiftkv.errors import UserError
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, rewire
from swiftkv.models.checkpoint import saved_shapes
from swiftkv.spec import SwiftKVSpec

# config.json of DeepSeek-V2-Lite-Chat, all fields and their spelling, in a small size.
HUB_CONFIG = json.loads(Path(__file__).with_name("configs").joinpath("deepseek-v2-lite-chat.json").read_text())


@torch.no_grad()
def test_the_hub_s_checkpoint_needs_no_remote_code(tmp_path, tokens):
    """With its config.json, auto_map included, and experts stored one by one under the published names."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**HUB_CONFIG)).save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", HUB_CONFIG)
    model, stored = load_base(tmp_path, torch.float32), load_file(tmp_path / "model.safetensors")
    assert type(model).__module__ == "transformers.models.deepseek_v2.modeling_deepseek_v2"
    experts = model.model.layers[2].mlp.experts
    assert torch.equal(experts.down_proj[3], stored["model.layers.2.mlp.experts.3.down_proj.weight"])
    assert torch.equal(experts.gate_up_proj[1, 32:], stored["model.layers.2.mlp.experts.1.up_proj.weight"])
    assert torch.equal(rewire(model, SwiftKVSpec(4, 4))(tokens).logits, model(tokens).logits)
    lost = "model.layers.3.mlp.experts.2.up_proj.weight"
    del stored[lost]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"has no tensor {lost}"):
        load_base(tmp_path)


def test_the_real_model_s_size_and_scaling():
    """Its 15.7 billion parameters, and YaRN as its own code has it: angles unscaled, scores times mscale squared."""
    dimensions = read_json(ROOT / "resources/architectures/deepseek-v2-lite.json")["config"]
    sizes = {key: dimensions[key] for key in dimensions if key in HUB_CONFIG}
    config = AutoConfig.for_model(**HUB_CONFIG | sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = saved_shapes(model)
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (5291, 15_706_484_224)
    assert parameter_count(dimensions) == 15_706_484_224
    assert model.model.rotary_emb.attention_scaling == 1.0
    assert model.model.layers[0].self_attn.scaling == pytest.approx((0.0707 * math.log(40) + 1) ** 2 / 192**0.5)
