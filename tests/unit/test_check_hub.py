"""Hub repositories that jobs could not load are named before anything is downloaded."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from huggingface_hub import constants, errors
from tests.unit.artifact_helpers import ROOT, scale, typed

from pipeline.run import check
from pipeline.run.check import Report, check_hub, in_cache
from pipeline.run.jobs import PlannedJob
from pipeline.run.sizes import Download, downloads, once
from pipeline.sources import MODEL_FILES, TOKENIZER_FILES

MODEL = Download("model", "org/name", files=tuple(MODEL_FILES))
RESPONSE = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid/api"))
FILES = [
    SimpleNamespace(rfilename="model.safetensors", size=2 * 10**9),
    *(
        SimpleNamespace(rfilename=name, size=10**12)
        for name in ("old.bin", "consolidated.safetensors", "onnx/a.safetensors")
    ),
]
DESCRIPTION = {
    "config": {"model_type": "llama", "num_hidden_layers": 8},
    "tokenizer": {"chat_template": "{{ messages }}"},
}


@pytest.fixture
def api(monkeypatch):
    """The answers of a hub that has one model of 2 GB; `fails` and `refuses` are raised, `cached` is the local cache."""
    answers = SimpleNamespace(gated=False, fails=None, refuses=None, seconds=0, cached=False, asked=0, **DESCRIPTION)

    class Api:
        def repo_info(self, identifier, **settings):
            answers.asked += 1
            time.sleep(answers.seconds)
            if answers.fails:
                raise answers.fails
            return SimpleNamespace(gated=answers.gated, siblings=FILES)

        def auth_check(self, identifier, **settings):
            if answers.refuses:
                raise answers.refuses

        def snapshot_download(self, identifier, local_dir, **settings):
            Path(local_dir, "config.json").write_text(json.dumps(answers.config))
            Path(local_dir, "tokenizer_config.json").write_text(json.dumps(answers.tokenizer))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(check, "in_cache", lambda item: answers.cached)
    return answers


def checked(*items):
    """The lines about repositories, the failures, and the bytes to be downloaded."""
    lines = []
    report = Report(lines.append)
    missing = check_hub(report, items)
    return " ".join(lines), report.failures, missing


def test_an_accessible_model_tells_its_size(api):
    api.gated = "manual"
    said, failures, missing = checked(MODEL)
    assert "accessible, 2.0 GB to be downloaded" in said and missing == 2 * 10**9 and not failures
    api.cached = True
    said, _, missing = checked(MODEL)
    assert "in the local cache" in said and missing == 0


@pytest.mark.parametrize(
    ("raises", "error", "words"),
    [
        ("refuses", errors.GatedRepoError("gated", response=RESPONSE), "org/name (revision 'main') is gated"),
        (
            "fails",
            errors.RepositoryNotFoundError("none", response=RESPONSE),
            "org/name (revision 'main') does not exist",
        ),
        ("fails", errors.RevisionNotFoundError("none", response=RESPONSE), "has no such revision"),
        ("fails", errors.HfHubHTTPError("denied", response=RESPONSE), "is refused by the hub (403)"),
    ],
)
def test_a_refusal_is_named(api, raises, error, words):
    api.gated = "manual"
    setattr(api, raises, error)
    (sentence,) = checked(MODEL)[1]
    assert words in sentence


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"config": {"model_type": "gpt2", "num_hidden_layers": 8}}, "does not know 'gpt2'"),
        ({"config": {"model_type": "llama", "num_hidden_layers": 9}}, "org/name has 9 layers"),
        ({"tokenizer": {}}, "the tokenizer of org/name has no chat template"),
    ],
)
def test_a_model_is_refused_by_its_description(api, changed, words):
    item = replace(MODEL, layers=8, template=True)
    assert not checked(item)[1]
    vars(api).update(changed)
    (sentence,) = checked(item)[1]
    assert words in sentence


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ({"fails": httpx.ConnectError("no route")}, 1, "cannot be reached (ConnectError)"),
        ({"seconds": 5}, 1, "cannot be reached (TimeoutError)"),
        ({"offline": True}, 0, "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_silent_hub_is_asked_once_and_is_one_failure(api, monkeypatch, settings, asked, words):
    vars(api).update(settings)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", "offline" in settings)
    monkeypatch.setattr(check, "HUB_SECONDS", 0.01)
    items = [MODEL, replace(MODEL, hub="org/other"), replace(MODEL, hub="org/more", optional=True)]
    _, (sentence,), missing = checked(*items)
    assert words in sentence and "local cache: org/name, org/other;" in sentence and api.asked == asked and not missing
    api.cached = True
    assert "in the local cache" in checked(MODEL)[0]


def test_what_is_not_in_the_cache_is_not_taken_for_cached():
    assert not in_cache(Download("model", "swiftkv-check/absent", files=tuple(MODEL_FILES)))
    assert not in_cache(Download("data set", "swiftkv-check/absent"))


def test_the_sources_of_planned_jobs():
    config = typed(scale())

    def fetched(*jobs):
        planned = [PlannedJob(rule, wildcards) for rule, wildcards in jobs]
        return {item.hub: item for item in once(item for job in planned for item in downloads(job, config, ROOT))}

    found = fetched(
        ("resolve_model", {"model": "llama-3.1-8b-base"}),
        ("resolve_model", {"model": "llama-3.1-8b"}),
        ("dummy_checkpoint", {"model": "qwen2.5-7b"}),
        ("fetch_checkpoint", {"model": "llama-3.1-8b", "variant": "swiftkv-50-published"}),
        ("heldout", {}),
        ("corpus", {"data": "ultrachat"}),
        ("fetch_questions", {"task": "gsm8k"}),
        ("table", {"artifact": "table2"}),
    )
    assert {name: item.what for name, item in found.items()} == {
        "meta-llama/Llama-3.1-8B": "model", "meta-llama/Llama-3.1-8B-Instruct": "model", "Qwen/Qwen2.5-7B-Instruct": "tokenizer",
        "Snowflake/Llama-3.1-SwiftKV-8B-Instruct": "checkpoint", "HuggingFaceH4/ultrachat_200k": "data set",
        "teknium/OpenHermes-2.5": "data set", "openai/gsm8k": "questions",
    }  # fmt: skip
    assert found["meta-llama/Llama-3.1-8B-Instruct"].files == tuple(MODEL_FILES)  # not only its chat template's
    assert found["meta-llama/Llama-3.1-8B-Instruct"].gated and not found["openai/gsm8k"].optional
    alone = fetched(("resolve_model", {"model": "llama-3.1-8b-base"}))
    assert alone["meta-llama/Llama-3.1-8B-Instruct"].files == tuple(TOKENIZER_FILES)
