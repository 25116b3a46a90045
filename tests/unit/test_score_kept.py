"""A score that is killed and started again is the score of an undisturbed job, and computes only what was lost."""

import functools

import pytest
import torch
from score_helpers import PANEL, SHAPE, TASKS, TRUTHFULQA, scored
from tests.conftest import byte_tokenizer, tiny_teacher
from tests.programs import write_lines
from transformers import LlamaForCausalLM

from pipeline.quality.lm import NODES, CachedLM
from pipeline.records import KeptAnswers
from swiftkv.io import read_json
from swiftkv.models import load_any


class Killed(BaseException):
    """Stands for the end of a job at its time limit."""


@pytest.fixture
def passes(monkeypatch):
    """Function that scores, kills the job before forward pass number `last`, and returns the number of passes."""
    number, limit, forward = 0, None, LlamaForCausalLM.forward

    @functools.wraps(forward)
    def counted(*args, **kwargs):
        nonlocal number
        if number == limit:
            raise Killed
        number += 1
        return forward(*args, **kwargs)

    def run(score, last=None):
        nonlocal number, limit
        number, limit = 0, last
        score()
        return number

    monkeypatch.setattr(LlamaForCausalLM, "forward", counted)
    return run


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """One task of log-likelihoods, with a number for each question, and one of generated answers."""
    folder = tmp_path_factory.mktemp("questions")
    sums = [
        {"question": "1 + " * number + "1?", "answer": f"One by one {'and one ' * number}#### {number + 1}"}
        for number in range(8)
    ]
    write_lines(folder / "g.jsonl.gz", sums)
    few = {"source": {"local": str(folder), "splits": {"test": "g.jsonl.gz"}}, "shots": 0, "limit": 7, "batch_size": 2}
    return {"bits": PANEL["gsm8k-bits"] | few, "asked": TASKS["gsm8k"] | few | {"max_gen_toks": 3}}


def written(source, tasks):
    records = [read_json(source.parent / f"{name}.json") for name in tasks]
    return [{key: value for key, value in record.items() if key != "provenance"} for record in records]


def test_a_killed_score_goes_on(source, tasks, passes, tmp_path, monkeypatch):
    def load(folder, tokenizer, kv_cache):
        return CachedLM(load_any(folder, torch.bfloat16), byte_tokenizer(), kv_cache)

    monkeypatch.setattr("pipeline.quality.scores.load_lm", load)
    monkeypatch.setitem(NODES, "cpu", 60)
    state, run = tmp_path / "state", functools.partial(scored, source, tasks, kv_cache="fp8")
    every = passes(lambda: run(state=None))
    undisturbed = written(source, tasks)
    for _ in range(2):  # in the first task, and in the second
        with pytest.raises(Killed):
            passes(lambda: run(state=state), last=every // 3)
    rest = passes(lambda: run(state=state))
    assert written(source, tasks) == undisturbed
    assert len(set(undisturbed[0]["result"]["questions"]["values"])) == 7
    assert "fp8_keys" in undisturbed[1]["result"]
    assert 0 < rest < every * 0.6
    assert not state.exists()


def test_answers_of_other_weights_are_not_taken(source, tasks, passes, tmp_path):
    state = tmp_path / "state"
    with pytest.raises(Killed):
        passes(lambda: scored(source, tasks, state=state), last=10)
    other = tiny_teacher(**SHAPE)
    other.model.layers[0].mlp.up_proj.weight.data.neg_()
    other.save_pretrained(source.parent / "checkpoint")  # of the same size, at the same place
    every = passes(lambda: scored(source, tasks))
    fresh = written(source, tasks)
    assert passes(lambda: scored(source, tasks, state=state)) == every
    assert written(source, tasks) == fresh


def test_answers_stay_until_an_unavailable_source_is_back(source, tasks, passes, tmp_path):
    fetched = tmp_path / "truthfulqa"
    fetched.mkdir()
    (fetched / "source.json").write_text('{"status": "unavailable", "reason": "the hub is silent"}')
    every = tasks | {"truthfulqa": TRUTHFULQA}
    first = passes(lambda: scored(source, every, state=tmp_path / "state", fetched=[fetched]))
    records = written(source, every)
    assert records[-1]["status"] == "unavailable" and records[-1]["reason"] == "the hub is silent"
    assert passes(lambda: scored(source, every, state=tmp_path / "state", fetched=[fetched])) < first / 10
    assert written(source, every) == records


@pytest.mark.parametrize("end", [b'\n["b", 2, 0.', b"\n\0\0\n"])
def test_a_line_that_was_cut_short_is_computed_again(end, tmp_path):
    first = KeptAnswers(tmp_path / "state")
    assert [first.answer([1], lambda: 0.1), first.answer([2], lambda: [0.2, True])] == [0.1, [0.2, True]]
    first.file.write_bytes(first.file.read_bytes() + end)
    second = KeptAnswers(tmp_path / "state")
    assert second.answer([2], lambda: pytest.fail("computed again")) == [0.2, True]
    assert second.answer([3], lambda: 3) == 3
    assert KeptAnswers(tmp_path / "state").answer([3], lambda: pytest.fail("computed again")) == 3
