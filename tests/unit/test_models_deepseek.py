"""DeepSeek-V2: its cache, its checkpoints, and what it is refused."""

import torch
from safetensors.torch import load_file, save_file
from tests.conftest import refused
from tests.programs import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, rewire
from swiftkv.spec import SwiftKVSpec

# config.json of DeepSeek-V2-Lite-Chat, all fields and their spelling, in a small size.
HUB_CONFIG = read_json(ROOT / "tests/unit/configs/deepseek-v2-lite-chat.json")


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
    with refused(f"has no tensor {lost}"):
        load_base(tmp_path)
