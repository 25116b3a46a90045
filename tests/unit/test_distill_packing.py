"""Chats to packed rows, and which of their tokens the assistant says."""

from itertools import pairwise

import numpy as np
import pytest
from tests.conftest import CHATML, byte_tokenizer, refused
from tests.programs import write_lines
from tests.unit.distill_helpers import random_samples, run, settings, stage

from swiftkv.distill.packing import PackedRows, Sample, pack, tokenize, write_packed
from swiftkv.distill.recipe import PackingSettings
from swiftkv.io import write_json

USER, ASSISTANT = {"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}
CHAT = {"messages": [USER, ASSISTANT]}


def test_packing_keeps_every_sample_whole_and_counts_the_rest():
    marked, unmarked = random_samples(60, 40), Sample(np.arange(9, dtype=np.int32))
    samples = [*marked, unmarked, Sample(np.arange(65, dtype=np.int32)), Sample(np.zeros(0, dtype=np.int32))]
    arrays, counts = pack(samples, 64, seed=3, padding=0)
    found = []
    for ids, positions, mask, assistant in zip(*arrays.values(), strict=True):
        starts = [*np.flatnonzero(positions == 0), 64]
        for start, end in pairwise(starts):
            assert (positions[start:end] == np.arange(end - start)).all()
            assert len(set(mask[start:end])) == 1
            if mask[start]:
                found.append((ids[start:end].tobytes(), assistant[start:end].tobytes()))
            else:
                assert end == 64 and (ids[start:end] == 0).all() and not assistant[start:end].any()
    expected = [(sample.ids.tobytes(), sample.assistant.tobytes()) for sample in marked]
    assert sorted(found) == sorted([*expected, (unmarked.ids.tobytes(), bytes(9))])
    assert counts == {
        "samples": 61, "tokens": sum(map(len, samples[:61])), "too_long": 1, "empty": 1, "not_needed": 0,
        "unmarked": 1, "assistant_tokens": sum(int(sample.assistant.sum()) for sample in marked),
    }  # fmt: skip
    few, counts = pack(random_samples(60, 40), 64, seed=3, padding=0, max_rows=5)  # no more than a recipe needs
    assert len(few["input_ids"]) == 5
    assert counts["samples"] + counts["not_needed"] == 60 and counts["not_needed"] > 0


def test_chats_through_the_template():
    turns = [("user", "w1 w2"), ("assistant", "w3"), ("user", "w4"), ("assistant", "w5 w6")]
    loaded = byte_tokenizer()
    ((sample,), refused) = tokenize(
        loaded, [{"messages": [{"role": role, "content": content} for role, content in turns]}]
    )
    text = "<s>user\nw1 w2</s><s>assistant\nw3</s><s>user\nw4</s><s>assistant\nw5 w6</s>"
    assert loaded.decode(sample.ids) == text and refused == 0
    assert loaded.decode(sample.ids[sample.assistant == 1]) == "w3</s>w5 w6</s>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | length }} {% for m in messages %}{{ m.content }} {% endfor %}",  # says how many there are
        "{% for m in messages %}{{ m.content }} {% endfor %}{{ raise_exception('x') if messages | length < 2 }}",
    ],
)
def test_templates_that_do_not_tell_the_assistants_tokens(tmp_path, template):
    other = byte_tokenizer()
    other.chat_template = template
    ((sample,), _) = tokenize(other, [CHAT])
    assert sample.assistant is None
    arrays, counts = pack([sample], 64, 0, 0)
    write_packed(tmp_path / "rows", arrays, counts)
    assert PackedRows(tmp_path / "rows").rows == 1
    with refused("assistant's tokens in 1 of 1 chats; use logits_tokens: all"):
        PackedRows(tmp_path / "rows", assistant=True)


def test_chats_that_the_template_refuses_are_counted_up_to_1_percent(tmp_path):
    """By the program that packs; a chat longer than the model's positions is left out as well.

    Rows are not padded with the tokenizer's own token, as the embedding has no row for it.
    """
    strict = byte_tokenizer()
    strict.add_special_tokens({"pad_token": "[PAD]"})
    strict.chat_template = "{{ raise_exception('user first') if messages[0].role != 'user' }}" + CHATML
    strict.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {"max_position_embeddings": 40, "vocab_size": 259})
    write_json(tmp_path / "source.json", {"name": "m", "path": str(tmp_path)})
    long, wrong = {"messages": [USER | {"content": "w1 " * 10}, ASSISTANT]}, {"messages": [ASSISTANT, USER]}
    write_lines(tmp_path / "chats.jsonl", [CHAT] * 98 + [long, wrong])
    arguments = {
        "--model-source": tmp_path / "source.json",
        "--recipe": settings(PackingSettings),
        "--data": tmp_path / "chats.jsonl",
        "--output": tmp_path / "rows",
    }
    ended = run(stage("pack", arguments))
    sentence = "1 of 100 chats are left out; the first: chat 100: the chat template refuses it (user first)"
    assert ended.returncode == 0 and sentence in ended.stdout, ended.stderr
    assert "1 of more than 40 tokens, 1 refused" in ended.stderr
    rows = PackedRows(tmp_path / "rows")
    assert strict.pad_token_id == 259 and rows[range(rows.rows)]["input_ids"].max() < 259
    description = rows.description
    assert [description[key] for key in ("samples", "too_long", "longest", "refused")] == [98, 1, 40, 1]
    assert description["chat_date"] == "2024-07-26"


def test_packed_file_is_read_back_and_a_damaged_one_is_refused(tmp_path):
    arrays, counts = pack(random_samples(20, 40), 64, 0, 0)
    write_packed(tmp_path / "rows", arrays, counts)
    rows = PackedRows(tmp_path / "rows")
    assert (rows.rows, rows.max_length) == arrays["input_ids"].shape and rows.description == counts
    assert (rows[[2, 0]]["input_ids"].numpy() == arrays["input_ids"][[2, 0]]).all()
    assert rows.counted([0, 1]) == arrays["loss_mask"][:2].sum()
    content = (tmp_path / "rows").read_bytes()
    for name, damaged in {"short": content[:-100], "text": b"not tensors at all", "empty": b""}.items():
        (tmp_path / name).write_bytes(damaged)
        with refused(name):
            PackedRows(tmp_path / name)
    with refused("does not exist"):
        PackedRows(tmp_path / "nothing")
