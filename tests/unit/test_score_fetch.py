"""Questions of the hub are fetched once, whole; scoring reads them without a network."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from score_helpers import SHAPE, write_source
from score_tasks import TASKS

from pipeline.score import fetch
from pipeline.score.run import measure_scores
from pipeline.score.tasks import build_benchmark
from swiftkv.errors import UserError
from swiftkv.io import read_json

WINOGRANDE = TASKS["winogrande"] | {"source": {"hub": "org/winogrande", "revision": "v1"}, "limit": 3, "shots": 1}


def table(name: str, rows: int) -> datasets.Dataset:
    sentences = [f"{name} met Bea and _ smiled {number}" for number in range(rows)]
    columns = {"sentence": sentences, "option1": [name] * rows, "option2": ["Bea"] * rows}
    return datasets.Dataset.from_dict(columns | {"answer": ["1", "2", "1"] * (rows // 3)})


@pytest.fixture
def fetched(tmp_path, monkeypatch) -> Path:
    """Questions as they are fetched of a hub that has them."""
    calls, splits = [], {"train": table("Cid", 12), "validation": table("Ann", 9)}
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(sha="abc123"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: calls.append((a, k)) or splits)
    fetch.fetch_questions(WINOGRANDE, tmp_path / "winogrande")
    assert calls == [(("org/winogrande",), {"name": "winogrande_xl", "revision": "abc123"})]  # as lm-eval would
    return tmp_path / "winogrande"


def test_they_are_scored_offline(fetched, tiny_teacher, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    tasks, output = {"winogrande": WINOGRANDE}, tmp_path / "score.json"
    measure_scores(source, None, "v", None, "auto", tasks, seed=3, outputs=[output], fetched=[fetched])
    record = read_json(output)
    assert record["data"] == {"kind": "hub", "id": "org/winogrande", "revision": "v1", "resolved": "abc123"}
    assert (record["result"]["n"], record["result"]["n_total"]) == (3, 9)
    assert record["settings"]["fewshot"] == "random from split 'train', a draw a question"
    assert "Ann" in record["settings"]["prompt_example"] and "Cid" in record["settings"]["prompt_example"]


def test_questions_that_were_damaged_after_they_were_fetched_are_one_sentence(fetched):
    os.truncate(fetched / "000/validation/data-00000-of-00001.arrow", 300)
    with pytest.raises(UserError, match="missing or damaged .*; delete it and run again"):
        build_benchmark(WINOGRANDE, 3, fetched)


def fetch_from(source, folder: Path, task: str = "truthfulqa_mc2") -> None:
    fetch.fetch_questions({"task": task, "source": source}, folder / "q")


def test_only_an_optional_source_may_be_unavailable(monkeypatch, tmp_path):
    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", silent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("pipeline.sources.hub._patiently.retry.sleep", lambda _seconds: None)
    for source in (None, {"hub": "truthfulqa/truthful_qa"}):
        with pytest.raises(UserError, match="truthfulqa/truthful_qa.*cannot be reached"):
            fetch_from(source, tmp_path)
        assert not (tmp_path / "q").exists()
    fetch_from({"hub": "google/IFEval", "optional": True}, tmp_path, "ifeval")
    record = read_json(tmp_path / "q/source.json")
    assert record["status"] == "unavailable" and "google/IFEval" in record["reason"]
    with pytest.raises(fetch.Unavailable, match="google/IFEval"):
        fetch.Fetched(tmp_path / "q")
