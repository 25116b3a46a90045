"""Documents drawn for measuring: the same on every day, none that the template refuses, none beyond the model's positions."""

import datetime
import json

import pytest
from score_helpers import CHATML, byte_tokenizer, write_chats

from pipeline.measure.client import chat_prompts, opening
from swiftkv.chats import choose_chats, draw_documents, tokenize_chat
from swiftkv.distill.packing import tokenize
from swiftkv.errors import UserError

DATED = "Today is {{ strftime_now('%d %b %Y') }}. " + CHATML
STRICT = "{% if 'x' in messages[0].content %}{{ raise_exception('roles must alternate') }}{% endif %}" + CHATML


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


def write_refused(path, refused, number=200):
    """A file of chats of which `STRICT` refuses the last few."""
    lines = write_chats(path, number).read_text().splitlines()
    bad = json.dumps({"id": "bad", "source": "bad", "messages": [{"role": "user", "content": "x"}]})
    path.write_text("\n".join(lines[: number - refused] + [bad] * refused) + "\n")
    return path


@pytest.mark.parametrize("day", [2, 3])
def test_prompts_do_not_depend_on_the_day(tmp_path, tokenizer, monkeypatch, day):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2030, 1, day)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
    tokenizer.chat_template = DATED
    path = write_chats(tmp_path / "chats.jsonl")
    ((sample, *_), _), ((document, *_), _) = (
        tokenize(tokenizer, choose_chats(path, 6, 0)),
        draw_documents(tokenizer, {}, path, 6, 1000, 0),
    )
    assert sample.ids.tolist() == document and sample.assistant.any()
    for ids in (document, opening(tokenizer, {"role": "user", "content": "Hello"})):
        assert tokenizer.decode(ids).startswith("Today is 26 Jul 2024. ")


def test_chats_that_a_template_refuses_are_left_out_of_a_draw(tmp_path, tokenizer, capsys):
    path = write_refused(tmp_path / "chats.jsonl", 2)
    expected = [
        tokenize_chat(tokenizer, chat["messages"], 50) for chat in choose_chats(path, 199, 4) if chat["id"] != "bad"
    ]
    tokenizer.chat_template = STRICT
    documents, data = draw_documents(tokenizer, {}, path, 199, 50, 4)
    assert documents == expected and len(documents) < 199
    assert data == {"chats": "chats.jsonl", "sources": ["bad", "chat"]}
    said = "2 of 200 chats are left out; the first: chat 199: the chat template refuses it (roles"
    assert said in capsys.readouterr().out
    tokenizer.save_pretrained(tmp_path)
    assert len(chat_prompts(tmp_path, path, 1000, 0)) == 198


def test_documents_end_where_the_models_positions_end(tmp_path, tokenizer):
    path = write_chats(tmp_path / "chats.jsonl")
    lengths = [
        {len(document) for document in draw_documents(tokenizer, config, path, 6, longest, 0)[0]}
        for config, longest in (({"max_position_embeddings": 20}, 30), ({"max_position_embeddings": 99}, 30), ({}, 30))
    ]
    assert lengths == [{20}, {30}, {30}]


@pytest.mark.parametrize("content", ["{", '{"id": 1}\n', '{"messages": []}\n', "[1]\n"])
def test_damaged_chats_are_one_sentence(tmp_path, content):
    path = write_chats(tmp_path / "chats.jsonl", 1)
    path.write_text(path.read_text() + content)
    with pytest.raises(UserError, match="chats.jsonl, line 2, is no chat"):
        choose_chats(path, 1, 0)
    path.write_text("")
    with pytest.raises(UserError, match="chats.jsonl holds no chat"):
        choose_chats(path, 1, 0)
    path.unlink()
    with pytest.raises(UserError, match="chats.jsonl does not exist"):
        choose_chats(path, 1, 0)
