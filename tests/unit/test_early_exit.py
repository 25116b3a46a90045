"""Early exit measured: agreement by confidence against its definition, the record, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from score_helpers import SPEC, write_chats
from tests.conftest import byte_tokenizer, refused

from pipeline.config.settings import EarlyExit
from pipeline.quality.early_exit import agreement, measure_early_exit, summarize_agreement, summarize_answers
from swiftkv.chats import choose_chats, tokenize_chat
from swiftkv.errors import UserError
from swiftkv.models import load_base, load_swiftkv, rewire, save_model
from swiftkv.models.early_exit import early_logits

EXIT = replace(SPEC, early_exit=True)
SETTINGS = {
    "threshold": 0.1, "bins": 10, "documents": 5, "max_length": 60, "prompts": 2, "max_new_tokens": 6, "seed": 0,
    "questions": ["What is 1 and 1?", "Who?"],
}  # fmt: skip


@pytest.fixture
def place(tmp_path, source):
    model = rewire(load_base(tmp_path / "checkpoint"), EXIT)
    with torch.no_grad():
        model.early_exit_head_swiftkv.weight.mul_(2)
    save_model(model, tmp_path / "swiftkv", tokenizer=byte_tokenizer())
    return source, write_chats(tmp_path / "heldout.jsonl"), tmp_path / "swiftkv", tmp_path / "out.json"


def measured(place, spec=EXIT, **changes):
    source, chats, checkpoint, output = place
    return measure_early_exit(source, checkpoint, "v", spec, chats, EarlyExit(**SETTINGS | changes), output)


@torch.no_grad()
def plain(model, document):
    """Confidence of the early exit, and whether both heads agree, at every position with a next token."""
    row = torch.tensor([document])
    early = early_logits(model, model.model.forward_lower(row).hidden)[0, :-1].float().softmax(-1)
    return early.amax(-1), early.argmax(-1) == model(row).logits[0, :-1].argmax(-1)


def test_agreement_is_counted_by_confidence(place, monkeypatch):
    model, document = load_swiftkv(place[2], torch.float32), list(range(3, 60))
    confidence, same = plain(model, document)
    for positions in (128, 7):
        monkeypatch.setattr("pipeline.quality.early_exit.POSITIONS", positions)
        found = agreement(model, document, 10, 0.25)
        for number in range(10):
            inside = (confidence >= number / 10) & (confidence < (number + 1) / 10)
            assert found[:, number].tolist() == [inside.sum(), (inside & same).sum()]
        assert found[:, 10].tolist() == [(confidence > 0.25).sum(), ((confidence > 0.25) & same).sum()]
        assert found[0, :10].sum() == len(document) - 1 and found[0, :10].count_nonzero() > 2


def test_sums_over_documents():
    found = summarize_agreement([torch.tensor([[2.0, 4, 3], [1, 4, 3]]), torch.tensor([[4.0, 0, 0], [2, 0, 0]])])
    assert found["all"]["positions"] == 10 and found["all"]["agreement"]["value"] == 0.7
    low, high = found["bins"]
    assert (low["confidence_from"], low["confidence_to"], low["positions"]) == (0, 0.5, 6)
    assert low["agreement"] == {"value": 0.5, "stderr": 0.0, "n": 2}
    # All of 4 agree: the error is that of 6 of 8.
    assert high["agreement"]["value"] == 1 and high["agreement"]["stderr"] == pytest.approx(math.sqrt(0.75 * 0.25 / 8))
    assert found["above_threshold"]["positions"] == 3


def test_answers_are_summed_without_their_first_tokens():
    def run(tokens, exited, seconds):
        return {"tokens": tokens, "exited": exited, "decode_seconds": seconds}

    found = summarize_answers(
        [
            {"early_exit": run(5, 2, 2.0), "full_depth": run(3, 0, 2.0), "equal_tokens": 2},
            {"early_exit": run(3, 0, 3.0), "full_depth": run(3, 0, 2.0), "equal_tokens": 3},
            only := {"early_exit": run(1, 0, 0.0), "full_depth": run(1, 0, 0.0), "equal_tokens": 1},
        ]
    )
    assert summarize_answers([only])["exited"] is None
    assert found["exited"]["value"] == pytest.approx(2 / 6)
    assert found["time_ratio"]["value"] == pytest.approx((0.5 + 1.5) / 2) and found["time_ratio"]["n"] == 2
    assert found["equal_tokens"]["value"] == pytest.approx(6 / 9)
    assert found["seconds_per_token"] == {"early_exit": pytest.approx(5 / 6), "full_depth": pytest.approx(1.0)}


def test_the_record(place):
    record = measured(place)
    assert (record["measure"], record["weights"], record["spec"]["early_exit"]) == ("early_exit", "trained", True)
    alignment, decoding = record["result"]["alignment"], record["result"]["decoding"]
    assert alignment["documents"] == 5
    positions = sum(
        len(tokenize_chat(byte_tokenizer(), chat["messages"], 60)) - 1 for chat in choose_chats(place[1], 5, 0)
    )
    assert alignment["all"]["positions"] == positions > alignment["above_threshold"]["positions"] > 0
    assert [row["question"] for row in record["result"]["answers"]] == SETTINGS["questions"]
    for row in record["result"]["answers"]:
        assert 1 <= row["early_exit"]["tokens"] <= 6 and row["full_depth"]["exited"] == 0
    assert decoding["prompts"] == 4 and 0 < decoding["exited"]["value"] <= 1


def test_what_cannot_exit_is_one_sentence(place, tmp_path):
    source, chats, _, output = place
    save_model(rewire(load_base(tmp_path / "checkpoint"), SPEC), tmp_path / "plain")
    with refused("plain has no early exit head; train a variant with early_exit: true"):
        measure_early_exit(source, tmp_path / "plain", "v", SPEC, chats, EarlyExit(**SETTINGS), output)
    with refused("of another spec"):
        measured(place, replace(EXIT, num_key_value_layers=2))
    assert not output.exists()


def test_questions_are_tokenized_before_anything_is_measured(place, monkeypatch):
    def refuse(*_):
        raise UserError("the template refuses the question")

    monkeypatch.setattr("pipeline.quality.early_exit.opening", refuse)
    monkeypatch.setattr("pipeline.quality.early_exit.agreement", lambda *_: pytest.fail("measured"))
    with refused("refuses the question"):
        measured(place)
