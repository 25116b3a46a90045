"""Chats come out of every kind of source, repeatable, never from a damaged file, and never both held out and trained on."""

import gzip
import json
import random

import pytest

from pipeline.sources.chats import build_corpus, draw_heldout
from swiftkv.chats import read_chats
from swiftkv.errors import UserError

GOOD = {"messages": [{"role": "user", "content": "x"}]}
TEMPLATES = {"user": "{{ question }}", "assistant": "{{ answer }}"}


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def build(tmp_path, sources, heldout=2, seed=0, heldout_sources=None):
    """Training chats, held-out chats and the two records of a mix."""
    held, train, record, other = (tmp_path / name for name in ("held.jsonl", "train.jsonl", "train.json", "held.json"))
    draw_heldout(heldout_sources or sources, heldout, seed, held, other)
    build_corpus(sources, seed, held, train, record)
    return (
        list(read_chats(train)),
        list(read_chats(held)),
        json.loads(record.read_text()),
        json.loads(other.read_text()),
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


def test_a_mix_with_the_same_chats_trains_on_none_that_is_held_out(tmp_path):
    first = sums(tmp_path, 40)
    again = sums(tmp_path, 45, name="again", limit=45)  # the same forty chats under another name, and five more
    train, held, record, _ = build(tmp_path, [first, again], heldout=10, heldout_sources=[first])
    texts = [chat["messages"][0]["content"] for chat in train]
    assert len(texts) == 85 - 20 and not {chat["messages"][0]["content"] for chat in held} & set(texts)
    assert [source["held_out"] for source in record["sources"]] == [10, 10] and record["held_out"] == 20


def test_every_chat_is_kept_unless_sources_ask_for_distinct_ones(tmp_path):
    alike = [{"question": "x" * 300 + str(i), "answer": "a"} for i in range(5)]
    empty = [{"question": "", "answer": "b"}, {"question": "a?", "answer": " "}]
    source = {"local": write_lines(tmp_path / "p.jsonl", alike + empty + records(1)), **TEMPLATES}
    for length, kept in ((None, 12), (200, 2), (301, 6)):
        mix = [source | {"name": name, "distinct_characters": length} for name in ("one", "two")]
        found = build(tmp_path, mix, heldout=1)[2]["sources"]
        counts = [sum(one[key] for one in found) for key in ("chats", "repeated", "empty")]
        assert counts == [kept, 12 - kept, 4]


def test_a_mix_that_is_all_held_out_is_refused(tmp_path):
    big, small = sums(tmp_path, 9), sums(tmp_path, 2, name="small")
    with pytest.raises(UserError, match="every chat of the data is held out"):
        build(tmp_path, [small], heldout=8, heldout_sources=[big], seed=3)
    assert not (tmp_path / "train.jsonl").exists()


def test_whole_chats_and_gzip(tmp_path):
    chat = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps({"doc": GOOD}).encode()))
    sources = [
        {"name": "s", "local": write_lines(tmp_path / "s.jsonl", [{"conversations": chat}]), "chats": "sharegpt"},
        {"name": "m", "local": str(packed), "record": "doc", "chats": "messages"},
    ]
    train, held, *_ = build(tmp_path, sources, heldout=1)
    whole = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert sorted((c["messages"] for c in train + held), key=len) == [GOOD["messages"], whole]


def test_a_corrupt_source_leaves_nothing(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "bad.arrow").write_bytes(b"ARROW1 not really")
    (folder / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"question": "a", "answer": "b"}\n')[:-12])
    for name in ("bad.arrow", "bad.jsonl.gz"):
        with pytest.raises(UserError, match=f"{name} is damaged"):
            build(tmp_path, [{"name": "bad", "local": str(folder / name), **TEMPLATES}])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (
            {"chats": "sharegpt"},
            {"conversations": [{"from": "gpt", "value": "x"}]},
            {"conversations": [{"from": "tool"}]},
        ),
        ({"chats": "messages"}, GOOD, {"messages": [{"role": "user", "content": None}]}),
        (TEMPLATES, {"question": "x", "answer": "y"}, {"question": None, "answer": "y"}),
    ],
)
def test_one_record_in_a_hundred_that_is_no_chat_is_left_out(tmp_path, capsys, source, good, bad):
    source = source | {"name": "c", "local": write_lines(tmp_path / "c.jsonl", [bad] + [good] * 99)}
    held = tmp_path / "held"
    draw_heldout([source], 1, 0, held, tmp_path / "record")
    (identity,) = json.loads((tmp_path / "record").read_text())["sources"]
    assert (identity["chats"], identity["refused"]) == (99, 1)
    form = f"is no {source['chats']} chat" if "chats" in source else "does not fit the templates"
    assert f"1 of 100 chats are left out; the first: record 0 of data source 'c' {form}" in capsys.readouterr().out
    source["local"] = write_lines(tmp_path / "c.jsonl", [bad] * 2 + [good] * 98)
    with pytest.raises(UserError, match="2 of 100 chats are left out; the first: record 0.* At most 1% may be"):
        draw_heldout([source], 1, 0, held, tmp_path / "record")
