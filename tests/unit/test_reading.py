"""What a prompt still gives: bits of answers with and without its text."""

import math

import pytest
import torch
from artifact_helpers import reading_result
from tests.conftest import byte_tokenizer, random_ids, refused, tiny_teacher
from tests.programs import write_lines

from pipeline.artifacts.reading import differences
from pipeline.artifacts.records import Record
from pipeline.config.settings import Prompts
from pipeline.quality import reading
from pipeline.quality.reading import Document, answer_bits, measure_reading, shares_lower, tasks
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, rewire, save_model
from swiftkv.spec import SwiftKVSpec

SETTINGS = Prompts(items=5, among=2, seed=1)


@pytest.fixture
def questions(tmp_path):
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Title: T{n}\nBackground: Passage {n}.\n\nMore.\nQuestion: Which {n}?"},
                {"role": "assistant", "content": f"{n} of them all\n{n}"},
            ]
        }
        for n in range(6)
    ]
    write_lines(tmp_path / "train.jsonl", chats)
    return tmp_path / "train.jsonl"


def test_items_hold_their_text_and_the_control_does_not(questions):
    tokenizer = byte_tokenizer()
    found = tasks(tokenizer, questions, SETTINGS)
    sizes = {name: len(group) for name, group in found.items()}
    assert sizes == {"squad": 5, "among": 2}
    for name, (given, without) in [(name, item) for name, group in found.items() for item in group]:
        assert given.tokens[given.prompt :] == without.tokens[without.prompt :]
        text, alone = (tokenizer.decode(one.tokens[: one.prompt]) for one in (given, without))
        answer = tokenizer.decode(given.tokens[given.prompt :])
        assert answer == f"{answer[0]} of them all"[: reading.ANSWER]
        assert text.count("Passage") == (4 if name == "among" else 1) and "Passage" not in alone
        assert f"Title: T{answer[0]}\nBackground: Passage {answer[0]}." in text and f"Which {answer[0]}?" in alone
    assert [item.without for item in found["among"]] == [item.without for item in found["squad"][:2]]


@pytest.mark.parametrize(
    "own, group, changed", [(False, 1, False), (True, 1, False), (False, 2, False), (False, 1, True)]
)
def test_bits_are_those_of_the_whole_model(architecture, own, group, changed):
    """Only the rows of the answer are computed in layers >= l, from the unchanged model's pass where its weights are shared."""
    teacher = tiny_teacher(architecture)
    document = Document(tuple(random_ids(30, seed=1).tolist()), 24)
    specs = [SwiftKVSpec(6, layer, group, own_key_values=own) for layer in (2, 4)]
    members = {spec.num_key_value_layers: rewire(teacher, spec).eval() for spec in specs}
    for model in members.values() if changed else ():
        norm = model.model.layers[1].input_layernorm
        norm.weight = torch.nn.Parameter(2 * norm.weight)
    assert [shares_lower(teacher, model) for model in members.values()] == [not changed] * 2
    found = answer_bits(teacher, members, document)
    row = torch.tensor([document.tokens])
    logs = []
    for model in (teacher, *members.values()):
        more = {"full_depth": torch.arange(30)[None] >= 23} if own and model is not teacher else {}
        with torch.no_grad():
            logits = model.lm_head(model.model(row, use_cache=False, **more).last_hidden_state)
        logs.append(logits[0, 23:-1].double().log_softmax(-1))
    for (bits, kl), log in zip(found, logs, strict=True):
        expected = -log[range(6), list(document.tokens[24:])].sum().item() / math.log(2)
        assert bits == pytest.approx(expected, rel=1e-4)
        assert kl == pytest.approx((logs[0].exp() * (logs[0] - log)).sum().item(), rel=1e-3, abs=1e-5)
    assert found[0][1] == 0 and min(found[1][1], found[2][1]) > 0


def test_a_family_goes_on_where_it_was_killed_and_a_variant_has_the_same_items(
    tmp_path, source, questions, monkeypatch
):
    arguments = (source, questions, "copied", SETTINGS)
    whole = measure_reading(*arguments, tmp_path / "whole.json", layers=[2, 4])
    calls = []

    def counted(*given):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(given)
        return answer_bits(*given)

    monkeypatch.setattr(reading, "answer_bits", counted)
    more = {"layers": [2, 4], "state": tmp_path / "state"}
    with pytest.raises(KeyboardInterrupt):
        measure_reading(*arguments, tmp_path / "out.json", **more)
    assert not (tmp_path / "out.json").exists()
    monkeypatch.setattr(reading, "answer_bits", answer_bits)
    again = measure_reading(*arguments, tmp_path / "out.json", **more)
    assert again["result"] == whole["result"] and not (tmp_path / "state").exists()
    assert read_json(tmp_path / "out.json") == again

    members = whole["result"]["members"]
    assert [(member["layer"], member["flops"] < 1) for member in members] == [(6, False), (2, True), (4, True)]
    assert members[0]["tasks"]["squad"]["kl"] == [0.0] * 5
    spec = SwiftKVSpec(6, 4)
    save_model(rewire(load_base(tmp_path / "checkpoint"), spec), tmp_path / "swiftkv", tokenizer=byte_tokenizer())
    record = measure_reading(
        source, questions, "v", SETTINGS, tmp_path / "v.json", checkpoint=tmp_path / "swiftkv", spec=spec
    )
    assert record["weights"] == "trained" and record["result"]["tasks"] == whole["result"]["tasks"]
    for name, task in record["result"]["members"][1]["tasks"].items():
        for kind, values in task.items():
            assert values == pytest.approx(members[2]["tasks"][name][kind], rel=1e-4, abs=1e-5)


def test_items_longer_than_the_model_are_left_out(tmp_path, source, questions):
    lengths = [len(item.given.tokens) for item in tasks(byte_tokenizer(), questions, SETTINGS)["squad"]]
    record = read_json(source)
    record["config"]["max_position_embeddings"] = max(lengths)
    write_json(source, record)
    result = measure_reading(source, questions, "copied", SETTINGS, tmp_path / "out.json", layers=[4])["result"]
    assert len(result["tasks"]["squad"]["prompt_tokens"]) == len(result["members"][1]["tasks"]["squad"]["bits"]) == 5
    assert "among" not in result["tasks"]
    record["config"]["max_position_embeddings"] = min(lengths) - 1
    write_json(source, record)
    with refused("too few positions"):
        measure_reading(source, questions, "copied", SETTINGS, tmp_path / "none.json", layers=[4])


def test_only_the_same_items_are_compared():
    def reading(variant, sha256):
        result, machine = reading_result(6, 4, sha256), {"hardware": {"cores": 2}}
        return Record("reading", {"name": "m", "title": "M"}, variant, result=result, provenance=machine)

    for items, compared in (("same", True), ("other", False)):
        assert any(differences([reading("fitted", "same"), reading("copied", items)])) == compared
