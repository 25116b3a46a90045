"""Hub repositories that jobs could not load are named, and no token is."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
import yaml
from huggingface_hub import errors
from snakemake.utils import update_config
from tests.unit.artifact_helpers import ROOT, typed

from pipeline.run.check.hub import Hub, in_cache
from pipeline.run.jobs import PlannedJob
from pipeline.run.sizes import Download, downloads, once
from pipeline.sources import MODEL_FILES, TOKENIZER_FILES
from swiftkv.errors import UserError

MODEL = Download("model", "org/name", files=tuple(MODEL_FILES))
RESPONSE = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid/api"))
FILES = [
    SimpleNamespace(rfilename="model.safetensors", size=2 * 10**9),
    *(
        SimpleNamespace(rfilename=name, size=10**12)
        for name in ("old.bin", "consolidated.safetensors", "onnx/a.safetensors")
    ),
]


class Api:
    """Answers as the hub does, or fails."""

    def __init__(self, gated=False, fails=None, refuses=None):
        self.gated, self.fails, self.refuses, self.asked = gated, fails, refuses, 0

    def repo_info(self, identifier, *, repo_type, revision, timeout, files_metadata):
        self.asked += 1
        if self.fails:
            raise self.fails
        return SimpleNamespace(gated=self.gated, siblings=FILES)

    def auth_check(self, identifier, *, repo_type):
        if self.refuses:
            raise self.refuses


def hub(api, cached=False, **settings):
    return Hub(api, lambda source: cached, **{"token": True} | settings)


def test_an_accessible_model_tells_its_size():
    found = hub(Api(gated="manual"))
    assert found.look(MODEL) == "accessible, 2.0 GB to be downloaded"
    assert found.missing == 2 * 10**9
    found = hub(Api(), cached=True)
    assert "in the local cache" in found.look(MODEL) and found.missing == 0


@pytest.mark.parametrize(
    ("token", "words"), [(True, "the token here has no access"), (False, "there is no token here")]
)
def test_a_gated_model_without_access(token, words):
    api = Api(gated="manual", refuses=errors.GatedRepoError("gated", response=RESPONSE))
    with pytest.raises(UserError, match=f"org/name is gated and {words}.*accept its license"):
        hub(api, token=token).look(MODEL)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.RepositoryNotFoundError("none", response=RESPONSE), "the hub has no model org/name that you may see"),
        (errors.RevisionNotFoundError("none", response=RESPONSE), "org/name has no revision 'main'"),
        (errors.HfHubHTTPError("denied", response=RESPONSE), r"the hub refuses org/name \(403\)"),
    ],
)
def test_what_the_hub_refuses(error, words):
    with pytest.raises(UserError, match=words):
        hub(Api(fails=error)).look(MODEL)


@pytest.mark.parametrize(
    ("config", "tokenizer", "words"),
    [
        ({"model_type": "llama", "num_hidden_layers": 8}, {"chat_template": "{{ messages }}"}, None),
        ({"model_type": "gpt2", "num_hidden_layers": 8}, {"chat_template": "{{ messages }}"}, "does not know 'gpt2'"),
        ({"model_type": "llama", "num_hidden_layers": 9}, {"chat_template": "{{ messages }}"}, "org/name has 9 layers"),
        ({"model_type": "llama", "num_hidden_layers": 8}, {}, "the tokenizer of org/name has no chat template"),
    ],
)
def test_a_model_is_refused_by_its_description_before_its_weights_are_downloaded(config, tokenizer, words):
    def describe(item, folder):
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))

    found, item = hub(Api(), fetch=describe), replace(MODEL, layers=8, template=True)
    if words is None:
        assert found.look(item).startswith("accessible")
    else:
        with pytest.raises(UserError, match=words):
            found.look(item)
        assert found.missing == 0


def test_an_unreachable_hub_is_asked_once():
    api = Api(fails=httpx.ConnectError("no route"))
    found = hub(api)
    for _ in range(3):
        with pytest.raises(
            UserError, match=r"cannot be reached \(ConnectError\), and org/name is not in the local cache"
        ):
            found.look(MODEL)
    assert api.asked == 1
    assert "in the local cache" in hub(api, cached=True).look(MODEL)
    assert "its results will say that it is unavailable" in found.look(replace(MODEL, optional=True))


def test_a_hub_that_never_answers_is_given_up():
    class Silent(Api):
        def repo_info(self, identifier, **_):
            time.sleep(5)

    with pytest.raises(UserError, match="TimeoutError"):
        hub(Silent(), seconds=0.01).look(MODEL)


def test_offline_the_hub_is_not_asked():
    api = Api()
    assert hub(api, cached=True, offline=True).look(MODEL) == "in the local cache (HF_HUB_OFFLINE is set)"
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, and org/name is not in the local cache"):
        hub(api, offline=True).look(MODEL)
    assert not api.asked


def test_the_cache_is_looked_up():
    assert not in_cache(Download("model", "swiftkv-check/absent", files=tuple(MODEL_FILES)))
    assert not in_cache(Download("data set", "swiftkv-check/absent"))


def test_the_sources_of_planned_jobs():
    config = {}
    for name in ("config.yaml", "artifacts.yaml"):
        update_config(config, yaml.safe_load((ROOT / name).read_text()))

    def fetched(*jobs):
        planned = [PlannedJob(rule, wildcards) for rule, wildcards in jobs]
        return {
            item.hub: item for item in once(item for job in planned for item in downloads(job, typed(config), ROOT))
        }

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
