"""Models in folders are refused while planning if they cannot be trained, scored or served."""

import pytest
from tests.conftest import refused
from tests.programs import write_model
from tests.unit.artifact_helpers import scale, typed

from pipeline.config.local import check_local_sources
from swiftkv.io import write_json
from swiftkv.models import load_tokenizer

PAPER = scale()
MODEL = PAPER["models"]["llama-3.1-8b"] | {"source": {"local": "mine"}, "chat_template": None}
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
    return write_model(tmp_path / "mine", LLAMA)


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
        write_json(folder / file, content)
    with refused(f"config, at models.mine.source: .*{said}"):
        check_local_sources(configuration(gpus=SERVED), folder.parent)
    if file == "tokenizer_config.json":
        check_local_sources(configuration(gpus=SERVED, chat_template={"hub": "org/instruct"}), folder.parent)
        (folder / "chat_template.jinja").touch()
        check_local_sources(configuration(gpus=SERVED), folder.parent)


def added(number, name, special=True):
    return {"id": number, "content": name, "special": special}


@pytest.mark.parametrize("rows", [20, 40])
@pytest.mark.parametrize(
    ("tokenizer", "settings"),
    [
        ({"model": {"vocab": {str(number): number for number in range(30)}}}, {}),
        ({"model": {"vocab": [[str(number), 0.0] for number in range(30)]}}, {}),  # unigrams
        ({"added_tokens": [added(30, "<|turn|>")]}, {"chat_template": "<|turn|>{{ messages }}"}),
        ({"added_tokens": [added(30, "<|end|>")]}, {"eos_token": {"content": "<|end|>"}}),
        ({"added_tokens": [added(30, "<s>")], "post_processor": {"special_tokens": {"<s>": {"ids": [30]}}}}, {}),
        ({"added_tokens": [added(30, "covid", special=False)]}, {}),  # any text may have it
        ({}, {"added_tokens_decoder": {"30": {"content": "<|end|>", "special": True}}, "eos_token": "<|end|>"}),
    ],
)
def test_tokens_that_the_embedding_has_no_row_for_are_refused(folder, tokenizer, settings, rows):
    """While planning and when the tokenizer is loaded, before a forward pass fails on them."""
    write_json(folder / "config.json", LLAMA | {"vocab_size": rows})
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ messages }}"} | settings)
    if rows == 40:
        return check_local_sources(configuration(gpus=SERVED), folder.parent)
    with refused("models.mine.source: .*only 20 rows"):
        check_local_sources(configuration(gpus=SERVED), folder.parent)
    with refused("only 20 rows"):
        load_tokenizer(folder)


def test_tokens_that_no_text_gives_need_no_embedding(folder):
    """Such as one that was added to pad with, in place of which another is taken."""
    write_json(folder / "config.json", LLAMA | {"vocab_size": 20})
    write_json(folder / "tokenizer.json", {"added_tokens": [added(20, "[PAD]", special=False), added(21, "<|tool|>")]})
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ messages }}", "pad_token": "[PAD]"})
    check_local_sources(configuration(gpus=SERVED), folder.parent)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (configuration(source={"local": "no"}), "models.mine.source"),
        (configuration(chat_template={"local": "no"}), "models.mine.chat_template"),
        (configuration(checkpoints={"a": {"local": "no"}}), "models.mine.checkpoints.a"),
        (nothing_but(tasks={"t": TASK}), "tasks.t.source"),
    ],
)
def test_a_source_that_is_not_there_is_named(folder, config, place):
    with refused(f"config, at {place}: 'no' does not exist"):
        check_local_sources(config, folder.parent)
