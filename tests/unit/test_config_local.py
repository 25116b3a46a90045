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
TASK = PAPER["tasks"]["winogrande"] | {"source": {"local": "no", "splits": {"validation": "a"}}}


def nothing_but(**sections):
    return typed(PAPER | {"models": {}, "data": {}, "tasks": {}, **sections})


def configuration(layers=8, **changes):
    depth = {"num_hidden_layers": layers, "num_key_value_layers": {"50": layers // 2}}
    return nothing_but(models={"mine": MODEL | depth | changes})


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    save_file({"weight": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_that_is_as_stated_is_fine(folder):
    own = {"chat_template": {"local": "mine"}, "checkpoints": {"swiftkv-50": {"local": "mine"}}}
    check_local_sources(configuration(**own), folder.parent)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("config.json", "models.mine.source: .* is no checkpoint: it has no config.json"),
        ("tokenizer.json", "models.mine.source: .* has no tokenizer"),
        ("model.safetensors", "models.mine.source: .* it has no .*safetensors file"),
    ],
)
def test_an_incomplete_folder_is_named(folder, file, sentence):
    (folder / file).unlink()
    with pytest.raises(UserError, match=f"config, at {sentence}"):
        check_local_sources(configuration(), folder.parent)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (configuration(layers=12), "models.mine.source: .* has 8 layers, but num_hidden_layers is 12"),
        (configuration(source={"local": "nothere"}), "models.mine.source: 'nothere' does not exist"),
        (configuration(chat_template={"local": "no"}), "models.mine.chat_template: 'no' does not exist"),
        (configuration(checkpoints={"a": {"local": "no"}}), "models.mine.checkpoints.a: 'no' does not exist"),
        (nothing_but(data={"mix": MIX}), "data.mix.sources.0: 'no' does not exist"),
        (nothing_but(tasks={"t": TASK}), "tasks.t.source: 'no' does not exist"),
    ],
)
def test_a_source_that_is_not_there_is_named(folder, config, sentence):
    with pytest.raises(UserError, match=f"config, at {sentence}"):
        check_local_sources(config, folder.parent)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", {"model_type": "gpt2", "num_hidden_layers": 8}, "SwiftKV does not know 'gpt2' models, only"),
        ("tokenizer_config.json", {}, "the tokenizer of .* has no chat template: use an instruction-tuned model"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_while_planning(folder, file, content, sentence):
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"config, at models.mine.source: .*{sentence}"):
        check_local_sources(configuration(), folder.parent)
    (folder / "chat_template.jinja").touch()
    if file == "tokenizer_config.json":
        check_local_sources(configuration(), folder.parent)
