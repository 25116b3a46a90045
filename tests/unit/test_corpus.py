"""Chats come out of every kind of source, disjoint, repeatable, and never from a damaged file."""

import gzip
import json

import pytest

from swiftkv.data.build import build_corpus
from swiftkv.data.read import read_chats
from swiftkv.errors import UserError

TEMPLATES = {"user": "{{ question }}", "assistant": "{{ answer }}"}


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def build(tmp_path, sources, heldout=2, seed=0):
    paths = [tmp_path / name for name in ("train.jsonl", "heldout.jsonl", "source.json")]
    build_corpus(sources, heldout, seed, *paths)
    return list(read_chats(paths[0])), list(read_chats(paths[1])), json.loads(paths[2].read_text())


def records(number):
    return [{"question": f"{i} and one?", "answer": str(i + 1)} for i in range(number)]


def test_train_and_heldout_split_all_chats(tmp_path):
    source = {"name": "sums", "local": write_lines(tmp_path / "sums.jsonl", records(10)), **TEMPLATES}
    train, held, identity = build(tmp_path, [source], heldout=3)
    assert len(train) == 7 and len(held) == 3
    assert {chat["id"] for chat in train + held} == {f"sums/{i}" for i in range(10)}
    assert train[0]["messages"][0]["role"] == "user" and train[0]["messages"][1]["role"] == "assistant"
    assert identity["sources"][0]["resolved"].startswith("sha256:") and identity["sources"][0]["chats"] == 10
    assert build(tmp_path, [source], heldout=3)[0] == train
    assert build(tmp_path, [source], heldout=3, seed=1)[0] != train


def test_one_passage_is_used_once(tmp_path):
    passage = "x" * 300
    same = [{"question": passage + str(i), "answer": "a"} for i in range(5)]
    source = {"name": "p", "local": write_lines(tmp_path / "p.jsonl", same + records(4)), **TEMPLATES}
    train, held, identity = build(tmp_path, [source], heldout=1)
    assert len(train) + len(held) == 5 and identity["sources"][0]["left_out"] == 4


def test_whole_chats_and_gzip(tmp_path):
    chat = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]
    other = [{"role": "user", "content": "bye"}, {"role": "assistant", "content": "so long"}]
    packed = tmp_path / "x.jsonl.gz"
    with gzip.open(packed, "wt") as file:
        file.write(json.dumps({"doc": {"messages": other}}) + "\n")
    sources = [
        {"name": "s", "local": write_lines(tmp_path / "s.jsonl", [{"conversations": chat}]), "chats": "sharegpt"},
        {"name": "m", "local": str(packed), "record": "doc", "chats": "messages"},
    ]
    train, held, _ = build(tmp_path, sources, heldout=1)
    assert sorted(c["messages"][0]["content"] for c in train + held) == ["bye", "hello"]
    assert all(c["messages"][1]["role"] == "assistant" for c in train + held)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"package": "no-such-package", "file": "x", **TEMPLATES}, "no-such-package.*not installed"),
        ({"package": "numpy", "file": "no/such/*.arrow", **TEMPLATES}, "numpy.*has no file"),
        ({"local": "/no/such/file.jsonl", **TEMPLATES}, "/no/such/file.jsonl.*does not exist"),
    ],
)
def test_a_missing_source_is_named(tmp_path, source, sentence):
    with pytest.raises(UserError, match=sentence):
        build(tmp_path, [source])
    assert not list(tmp_path.iterdir())


def test_a_corrupt_source_leaves_nothing(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "bad.arrow").write_bytes(b"ARROW1 not really")
    (folder / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"question": "a", "answer": "b"}\n')[:-12])
    for name in ("bad.arrow", "bad.jsonl.gz"):
        with pytest.raises(UserError, match=f"{name} is damaged"):
            build(tmp_path, [{"name": "bad", "local": str(folder / name), **TEMPLATES}])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_template_that_does_not_fit_and_too_few_chats(tmp_path):
    path = write_lines(tmp_path / "sums.jsonl", records(3))
    with pytest.raises(UserError, match="template.*does not fit"):
        build(tmp_path, [{"name": "sums", "local": path, "user": "{{ query }}", "assistant": "x"}])
    with pytest.raises(UserError, match="3 chats, too few"):
        build(tmp_path, [{"name": "sums", "local": path, **TEMPLATES}], heldout=3)


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"id": "a", "source": "s", "messages": [{"role": "user", "content": "x"}]}\n{"id": \n')
    with pytest.raises(UserError, match="line 2"):
        list(read_chats(path))


def test_an_unreachable_hub_says_which_data_set_and_what_to_do(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match="data set 'org/chats'.*cannot be reached.*local"):
        build(tmp_path, [{"hub": "org/chats", "split": "train", "chats": "messages"}])
    assert not list(tmp_path.iterdir())
