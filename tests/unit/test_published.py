"""A SwiftKV checkpoint that others trained stands for a variant: checked, named in records, scored like our own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from score_helpers import SHAPE, SPEC, byte_tokenizer, write_chats, write_source

from pipeline.config.settings import Fidelity
from pipeline.score.fidelity import measure_fidelity
from pipeline.sources.published import fetch_checkpoint
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.models import save_swiftkv


@pytest.fixture
def source(tmp_path, tiny_teacher):
    return write_source(tiny_teacher(**SHAPE), tmp_path / "model")


@pytest.fixture
def released(tmp_path, tiny_swiftkv):
    """A checkpoint as someone else would publish it."""
    folder = tmp_path / "released"
    save_swiftkv(
        tiny_swiftkv(num_key_value_layers=3, key_value_group_size=2, **SHAPE), folder, tokenizer=byte_tokenizer()
    )
    return folder


def fetch(released, source, folder, **changes):
    return fetch_checkpoint(source, "published", {"local": str(released)}, replace(SPEC, **changes), folder)


def test_it_is_measured_as_what_it_is(source, released, tmp_path):
    identity = fetch(released, source, tmp_path / "checkpoint")
    assert identity["kind"] == "local" and identity["id"] == str(released) and "sha256" in identity["resolved"]
    draw = Fidelity(documents=6, max_length=64, seed=0)
    record = measure_fidelity(
        source, tmp_path / "checkpoint", "published", SPEC, "auto", write_chats(tmp_path / "chats"), draw,
        tmp_path / "fidelity.json",
    )  # fmt: skip
    assert record["weights"] == "published" and record["checkpoint"] == identity
    own = measure_fidelity(source, released, "own", SPEC, "auto", tmp_path / "chats", draw, tmp_path / "own.json")
    assert own["weights"] == "trained" and "checkpoint" not in own
    assert own["result"] == record["result"] and record["result"]["kl"]["value"] > 0.01


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_layers": 4}, "its num_key_value_layers is 3, but 4 is needed"),
        ({"num_key_value_heads": 2}, "its swiftkv_num_key_value_heads is None, but 2 is needed"),
    ],
)
def test_another_variant_is_refused(source, released, tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        fetch(released, source, tmp_path / "checkpoint", **changes)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(("field", "value"), [("hidden_size", 128), ("model_type", "qwen2_swiftkv")])
def test_another_model_is_refused(source, released, tmp_path, field, value):
    config = read_json(released / "config.json")
    (released / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(UserError, match=f"cannot be variant 'published' of model 'tiny': its {field} is"):
        fetch(released, source, tmp_path / "checkpoint")
