"""Local sources are looked at while planning: a folder that is not what the configuration says ends in one sentence."""

import json

import numpy as np
import pytest
from artifact_helpers import scale, typed
from safetensors.numpy import save_file

from pipeline.config.local import check_local_sources
from swiftkv.errors import UserError

PAPER = scale()
MODEL = PAPER["models"]["llama-3.1-8b"] | {"source": {"local": "mine"}, "chat_template": None}
MIX = {"sources": [{"local": "no", "name": "a", "chats": "messages"}], "seed": 1}
LLAMA = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8}
SERVED = {"distill": 0, "score": 0, "serve": 0}
TASK = PAPER["tasks"]["winogrande"] | {"source": {"local": "no", "splits": {"validation": "a"}}}


def nothing_but(**sections):
    return typed(PAPER | {"models": {}, "data": {}, "tasks": {}, **sections})


def configuration(**changes):
    depth = {"num_hidden_layers": 8, "num_key_value_layers": {"50": 4}}
    return nothing_but(models={"mine": MODEL | depth | changes})


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    save_file({"weight": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_that_is_as_stated_is_fine(folder):
    own = {"chat_template": {"local": "mine"}, "checkpoints": {"swiftkv-50": {"local": "mine"}}}
    check_local_sources(configuration(**own), folder.parent)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", None, "no config.json"),
        ("tokenizer.json", None, "no tokenizer"),
        ("model.safetensors", None, "safetensors"),
        ("config.json", {"model_type": "gpt2", "num_hidden_layers": 8}, "'gpt2'"),
        ("config.json", LLAMA | {"num_hidden_layers": 12}, "12 layers"),
        ("config.json", LLAMA | {"head_dim": 16}, "heads of 16"),
        ("tokenizer_config.json", {}, "no chat template"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_while_planning(folder, file, content, said):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"config, at models.mine.source: .*{said}"):
        check_local_sources(configuration(gpus=SERVED), folder.parent)
    if file == "tokenizer_config.json":
        check_local_sources(configuration(gpus=SERVED, chat_template={"hub": "org/instruct"}), folder.parent)
        (folder / "chat_template.jinja").touch()
        check_local_sources(configuration(gpus=SERVED), folder.parent)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (configuration(source={"local": "no"}), "models.mine.source"),
        (configuration(chat_template={"local": "no"}), "models.mine.chat_template"),
        (configuration(checkpoints={"a": {"local": "no"}}), "models.mine.checkpoints.a"),
        (nothing_but(data={"mix": MIX}), "data.mix.sources.0"),
        (nothing_but(tasks={"t": TASK}), "tasks.t.source"),
    ],
)
def test_a_source_that_is_not_there_is_named(folder, config, place):
    with pytest.raises(UserError, match=f"config, at {place}: 'no' does not exist"):
        check_local_sources(config, folder.parent)
