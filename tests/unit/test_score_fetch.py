"""Questions of the hub are fetched once, whole, and held to checksums; scoring reads them without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from score_helpers import SHAPE, write_source
from score_tasks import TASKS
from tests.hub import COMMIT, running

from pipeline.score import fetch
from pipeline.score.data import open_questions
from pipeline.score.run import measure_scores
from pipeline.score.tasks import build_benchmark
from swiftkv.errors import UserError
from swiftkv.io import read_json

WINOGRANDE = TASKS["winogrande"] | {"source": {"hub": "org/winogrande", "revision": "v1"}, "limit": 3, "shots": 1}
CARD = """---
configs:
- config_name: winogrande_xl
  data_files: [{split: train, path: xl/train.parquet}, {split: validation, path: xl/validation.parquet}]
---
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("pipeline.sources.hub.WAITS", ())
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # a silent hub sets them
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    fetch._answers.cache_clear()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with a data set of 9 questions and 12 examples."""
    folder = tmp_path_factory.mktemp("hub")
    with running(folder) as found:
        for split, name, rows in (("train", "Cid", 12), ("validation", "Ann", 9)):
            table = {
                "sentence": [f"{name} met Bea and _ smiled {number}" for number in range(rows)],
                "option1": [name] * rows,
                "option2": ["Bea"] * rows,
                "answer": ["1", "2", "1"] * (rows // 3),
            }
            path = folder / "org/winogrande/xl" / f"{split}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_dict(table).to_parquet(path)
        found.file("org/winogrande", "README.md", CARD.encode())
        yield found


def script(hub, folder: Path) -> subprocess.CompletedProcess:
    arguments = {"--task": json.dumps(WINOGRANDE), "--attempts": folder / "attempts", "--output": folder / "winogrande"}
    command = [
        sys.executable,
        "-m",
        "pipeline.stages",
        "fetch_questions",
        *(word for pair in arguments.items() for word in pair),
    ]
    environment = os.environ | hub.environment(folder / "cache")
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def fetched(hub, tmp_path_factory) -> Path:
    """The questions, after one damaged download."""
    folder = tmp_path_factory.mktemp("fetched")
    hub.damaged["org/winogrande/xl/validation.parquet"] = 1
    run = script(hub, folder)
    assert run.returncode == 0, run.stderr
    assert "xl/validation.parquet of org/winogrande is not what the hub has" in run.stdout
    return folder / "winogrande"


def test_a_damaged_download_is_fetched_again_and_scored_offline(fetched, hub, tiny_teacher, tmp_path, monkeypatch):
    assert hub.sent["org/winogrande/xl/validation.parquet"] == 2 and hub.sent["org/winogrande/xl/train.parquet"] == 1
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    tasks, output = {"winogrande": WINOGRANDE}, tmp_path / "score.json"
    measure_scores(source, None, "v", None, "auto", tasks, seed=3, outputs=[output], fetched=[fetched])
    record = read_json(output)
    assert record["data"] == {"kind": "hub", "id": "org/winogrande", "revision": "v1", "resolved": COMMIT}
    assert (record["result"]["n"], record["result"]["n_total"]) == (3, 9)
    assert record["settings"]["fewshot"] == "random from split 'train', a draw a question"
    assert "Ann" in record["settings"]["prompt_example"] and "Cid" in record["settings"]["prompt_example"]


def test_what_stays_damaged_is_one_sentence_and_no_folder(hub, tmp_path):
    hub.damaged["org/winogrande/xl/validation.parquet"] = 9
    run = script(hub, tmp_path)
    hub.damaged.clear()
    assert run.returncode == 1 and not (tmp_path / "winogrande").exists()
    (sentence,) = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert "xl/validation.parquet has the wrong checksum, also after a second download" in sentence
    assert "Traceback" not in run.stderr


def test_a_file_that_changed_after_it_was_fetched_is_noticed(fetched, tmp_path):
    import shutil

    copy = shutil.copytree(fetched, tmp_path / "winogrande")
    open_questions("winogrande", WINOGRANDE["source"], copy)
    table = copy / "000/validation/data-00000-of-00001.arrow"
    table.write_bytes(table.read_bytes().replace(b"Ann", b"Eve"))
    with pytest.raises(UserError, match="is missing or damaged; delete .*winogrande and run again"):
        open_questions("winogrande", WINOGRANDE["source"], copy)


def unreachable(*_, **__):
    raise ConnectionError("no route")


def fetch_from(source, folder: Path, task: str = "truthfulqa_mc2") -> None:
    fetch.fetch_questions({"task": task, "source": source}, folder / "q", folder / "q.attempts")


def test_only_an_optional_source_may_be_unavailable(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for source in (None, {"hub": "truthfulqa/truthful_qa"}):
        with pytest.raises(UserError, match="truthfulqa/truthful_qa.*cannot be reached"):
            fetch_from(source, tmp_path)
        assert not (tmp_path / "q").exists()
    fetch_from({"hub": "google/IFEval", "optional": True}, tmp_path, "ifeval")
    record = read_json(tmp_path / "q/source.json")
    assert record["status"] == "unavailable" and "google/IFEval" in record["reason"]
    with pytest.raises(fetch.Unavailable, match="google/IFEval"):
        open_questions("ifeval", {"hub": "google/IFEval", "optional": True}, tmp_path / "q")


def test_a_silent_hub_does_not_hold_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: __import__("time").sleep(5))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("pipeline.sources.hub.HUB_SECONDS", 0.1)
    fetch_from({"hub": "truthfulqa/truthful_qa", "optional": True}, tmp_path)
    assert "TimeoutError" in read_json(tmp_path / "q/source.json")["reason"]


def test_an_attempt_is_repeated_when_the_source_answers_and_not_before(monkeypatch, tmp_path):
    """The numbers are a parameter of the job, which runs again when they change."""
    task = {"task": "truthfulqa_mc2", "source": {"hub": "truthfulqa/truthful_qa", "optional": True}}
    asked, answers = [], [False]
    monkeypatch.setattr(fetch, "_answers", lambda *_, **__: asked.append(1) or answers[0])

    def number() -> int:
        return fetch.attempt(task, tmp_path / "q", tmp_path / "q.attempts")

    def runs(found: bool) -> None:
        (tmp_path / "q").mkdir(exist_ok=True)
        (tmp_path / "q/source.json").write_text(json.dumps({"status": "ok" if found else "unavailable"}))
        if not found:
            with (tmp_path / "q.attempts").open("a") as lines:
                lines.write("silent\n")

    first = number()
    runs(found=False)
    assert not asked and number() == first and asked  # nothing answers: no reason to run
    answers[0] = True
    second = number()
    assert second != first
    runs(found=False)  # it answered, and had nothing all the same
    answers[0] = False
    assert number() == second
    answers[0] = True
    third = number()
    assert third != second
    runs(found=True)
    asked.clear()
    assert number() == third and not asked


def test_a_task_that_the_catalogue_lacks_names_its_data_set(monkeypatch):
    known = fetch.KNOWN["gsm8k_cot"]
    monkeypatch.setattr("pipeline.config.catalogue.KNOWN", {"gsm8k_cot": known})  # its index of all tasks takes 10 s
    monkeypatch.setattr(fetch, "KNOWN", {})
    assert fetch.data_set("gsm8k_cot") == known.hub


def test_hub_data_is_loaded_as_lm_eval_would(monkeypatch, tmp_path):
    calls, info = [], type("Info", (), {"sha": "abc123"})
    table = datasets.Dataset.from_dict(
        {"sentence": ["a _ b"] * 9, "option1": ["x"] * 9, "option2": ["y"] * 9, "answer": ["1"] * 9}
    )
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    splits = {"train": table, "validation": table}
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: calls.append((a, k)) or splits)
    fetch_from(None, tmp_path, "winogrande")
    assert calls == [(("allenai/winogrande",), {"name": "winogrande_xl", "revision": "abc123"})]
    data = open_questions("winogrande", None, tmp_path / "q")
    assert data.identity == {"kind": "hub", "id": "allenai/winogrande", "revision": "main", "resolved": "abc123"}
    assert build_benchmark(WINOGRANDE | {"source": None}, data, seed=3).n_total == 9
