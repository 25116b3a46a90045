"""A source resolves to a checkpoint with an identity, or to one sentence that says what to do."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import save_file
from tests.conftest import CHATML, GGUF, byte_tokenizer, refused
from tests.programs import ROOT
from tests.unit.artifact_helpers import SMOL, scale, typed
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.sources import read_source, resolve_model
from pipeline.sources.hub import HubError, HubRepository
from pipeline.sources.published import fetch_checkpoint
from swiftkv.io import write_json

CHATS = {"hub": "org/chats"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("pipeline.sources.hub._patiently.retry.sleep", lambda _seconds: None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def write_checkpoint(folder):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"model_type": "llama", "num_hidden_layers": 2})
    save_file({"weight": torch.ones(64, 64)}, folder / "model.safetensors")
    return folder


def test_a_local_checkpoint_stays_where_it_is_and_is_known_by_its_content(tmp_path):
    folder = write_checkpoint(tmp_path / "mine")
    source, found, output = {"local": str(folder)}, set(), tmp_path / "source.json"
    for value in (1, 2):
        save_file({"weight": torch.full((64, 64), value)}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o700)
        record = resolve_model("mine", "Mine", source, output)
        found.add(record["resolved"])
    assert (
        record["path"] == str(tmp_path / "base")
        and record["kind"] == "local"
        and record["config"]["num_hidden_layers"] == 2
    )
    assert (tmp_path / "base").readlink() == folder and (folder / "model.safetensors").stat().st_mode & 0o777 == 0o700
    shutil.copytree(folder, tmp_path / "copy")
    found.add(resolve_model("mine", "Mine", {"local": str(tmp_path / "copy")}, output)["resolved"])
    assert len(found) == 2


def test_random_weights_of_another_architecture(tmp_path):
    from swiftkv.models import load_base, load_tokenizer

    shape = {
        "model_type": "deepseek_v2", "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "q_lora_rank": None, "kv_lora_rank": 16, "v_head_dim": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    record = resolve_model("tiny", "Tiny", GGUF | {"random": shape}, tmp_path / "source.json")
    model, words = load_base(record["path"]), load_tokenizer(record["path"])
    assert record["config"]["model_type"] == "deepseek_v2" and model.config.qk_head_dim == 12
    assert model.config.vocab_size == len(words) and model.config.eos_token_id == words.eos_token_id


def test_a_model_takes_the_chat_template_of_another(tmp_path):
    from transformers import AutoTokenizer

    mine = write_checkpoint(tmp_path / "mine")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(mine)
    byte_tokenizer().save_pretrained(tmp_path / "instruct")
    before, source, output = (
        {file.name: file.read_bytes() for file in mine.iterdir()},
        {"local": str(mine)},
        tmp_path / "m.json",
    )
    for folder in (mine, tmp_path / "no"):
        with refused("no tokenizer with a chat template"):
            resolve_model("mine", "Mine", source, output, {"local": str(folder)})
        assert not output.exists()
    owner = {"local": str(tmp_path / "instruct")}
    for _ in range(2):  # also over the first
        record = resolve_model("mine", "Mine", source, output, owner)
    assert record["id"] == str(mine) and record["chat_template"]["id"] == owner["local"]
    assert AutoTokenizer.from_pretrained(record["path"]).chat_template == CHATML
    assert Path(record["path"], "model.safetensors").read_bytes() == before["model.safetensors"]
    assert {file.name: file.read_bytes() for file in mine.iterdir()} == before


def answer(monkeypatch, *answers):
    """Let the hub give these answers, the last of them from then on; returns the list of what is asked."""
    asked, left = [], list(answers)

    def info(self, repo_id, *, revision, **_):
        asked.append((repo_id, revision))
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Exception):
            raise given
        return SimpleNamespace(sha=given)

    for name in ("dataset_info", "model_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{name}", info)
    return asked


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_weights_are_downloaded_of_known_models_alone(tmp_path, monkeypatch, kind):
    folder, output, fetched = write_checkpoint(tmp_path / "cache/abc"), tmp_path / "m/source.json", []
    write_json(folder / "config.json", {"model_type": kind, "num_hidden_layers": 2})
    (folder / "chat_template.jinja").write_text("{{ messages }}")

    def download(identifier, *, revision, allow_patterns, ignore_patterns):
        fetched.append((identifier, revision, "*.safetensors" in allow_patterns))
        return str(folder)

    answer(monkeypatch, "abc")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    described = ("org/mine", "abc", False)
    if kind == "gemma2":
        with refused("'gemma2'"):
            resolve_model("m", "M", {"hub": "org/mine"}, output, None, 2)
        assert fetched == [described] and not output.exists()
        return
    with refused("no tokenizer with a chat template"):
        resolve_model("m", "M", {"hub": "org/mine"}, output, {"local": str(tmp_path)}, 2)
    assert fetched == []
    resolve_model("m", "M", {"hub": "org/mine"}, output, None, 2)
    assert fetched == [described, ("org/mine", "abc", True)]
    assert str(tmp_path) not in output.read_text()  # the record knows no place of this machine
    (tmp_path / "m").rename(tmp_path / "moved")
    record = read_source(tmp_path / "moved/source.json")
    assert record["resolved"] == "abc" and Path(record["path"], "model.safetensors").exists()


def load(identifier, *, revision, split=None):
    return identifier, revision, split


def test_a_repository_is_loaded_at_the_commit_that_a_hub_gave_after_failing_for_a_while(monkeypatch):
    asked = answer(monkeypatch, ConnectionError("reset"), TimeoutError("slow"), "abc")
    repository = HubRepository("dataset", CHATS)
    assert repository.load(load, split="train") == ("org/chats", "abc", "train")
    assert repository.identity == {"kind": "hub", "id": "org/chats", "revision": "main", "resolved": "abc"}
    assert asked == [("org/chats", "main")] * 3


def test_a_silent_hub_leaves_the_cached_copy(monkeypatch, capsys):
    asked = answer(monkeypatch, ConnectionError("no network"))
    repository = HubRepository("dataset", CHATS | {"revision": "v1"})
    assert huggingface_hub.constants.HF_HUB_OFFLINE  # nothing else waits for it
    assert repository.load(load) == ("org/chats", "v1", None)
    assert repository.identity["resolved"] == "local cache"
    assert len(asked) == 3 and "trying again in 10 s" in capsys.readouterr().out


def test_a_model_in_the_cache_needs_no_hub(tmp_path, monkeypatch):
    cached = tmp_path / "models--org--model"
    write_checkpoint(cached / "snapshots/abc")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    answer(monkeypatch, errors.OfflineModeIsEnabled("no network"))
    record = resolve_model("m", "M", {"hub": "org/model", "revision": "main"}, tmp_path / "m.json")
    assert record["resolved"] == "abc" and (tmp_path / "base").readlink() == cached / "snapshots/abc"
    with refused("'org/other'.*cannot be reached.*`local` source"):
        resolve_model("m", "M", {"hub": "org/other"}, tmp_path / "other.json")


@pytest.mark.parametrize(
    "error, sentence",
    [
        (errors.RepositoryNotFoundError, "the hub has no org/chats"),
        (errors.RevisionNotFoundError, "org/chats has no revision 'main'"),
        (errors.GatedRepoError, "org/chats is gated .*: accept its license.*hf auth login"),
    ],
)
def test_what_the_hub_does_not_have_is_refused_at_once(monkeypatch, error, sentence):
    asked = answer(monkeypatch, error("no", response=SimpleNamespace(headers={}, request=None)))
    with pytest.raises(HubError, match=sentence):
        HubRepository("dataset", CHATS)
    assert len(asked) == 1


def test_the_shipped_checkpoint_predicts_as_its_base_does(tmp_path):
    """Attached to the packaged model as this machine reads it, it is 0.04 nats a token away, untrained it would be 0.21."""
    config = typed(scale("local"))
    entry, source = config.models[SMOL], tmp_path / "source.json"
    resolve_model(SMOL, entry.title, entry.source.model_dump(exclude_unset=True), source)
    spec, checkpoint = config.spec(SMOL, "shipped"), entry.checkpoints["shipped"].model_dump()
    fetch_checkpoint(source, "shipped", checkpoint, spec, tmp_path / "shipped")
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(tmp_path / "base")(text, return_tensors="pt")["input_ids"][:, :512]
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="float32") for name in ("base", "shipped")]
    with torch.no_grad():
        base, shipped = (model(ids).logits.log_softmax(-1) for model in models)
    assert (base.exp() * (base - shipped)).sum(-1).mean() < 0.1
