"""Checkpoints that share the files of their base: every form loads as the whole one, and a base that changed is refused."""

import shutil

import pytest
import torch
from tests.conftest import as_trained, byte_tokenizer, random_ids, refused, tiny_teacher
from tests.quantized import quantize
from tests.unit.distill_helpers import stored
from transformers import AutoModelForCausalLM

from pipeline.run.check import check_bases
from pipeline.run.jobs import PlannedJob
from swiftkv import attach
from swiftkv.io import read_json
from swiftkv.models import load_any, load_base, load_swiftkv, rewire, save_model
from swiftkv.models.checkpoint import check_tensors
from swiftkv.spec import SwiftKVSpec

BASES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "biased": {"architecture": "qwen2"},
    "half": {"dtype": torch.float16},
    "experts": {"architecture": "qwen3_moe"},
    "latent": {"architecture": "deepseek_v2"},
    "several files": {},
    "FP8": {},
}


def make_base(folder, name):
    teacher = tiny_teacher(**BASES[name])
    for parameter, tensor in teacher.named_parameters():
        if parameter.endswith("_proj.bias"):
            tensor.data += 0.1
    teacher.save_pretrained(folder, max_shard_size="200KB" if name == "several files" else "5GB")
    byte_tokenizer().save_pretrained(folder)
    if name == "FP8":
        folder.rename(folder.with_name("plain"))
        quantize(folder.with_name("plain"), folder, folder.with_name("rounded"))
    return folder


@pytest.fixture
def made(tmp_path):
    """Function that makes the trained model of a base, and that in a folder of links."""

    def make(name="tied"):
        folder = make_base(tmp_path / "base", name)
        teacher = load_base(folder, BASES[name].get("dtype", torch.float32))
        model = as_trained(rewire(teacher, SwiftKVSpec(6, 3)))
        save_model(model, tmp_path / "linked", tokenizer=byte_tokenizer(), base=folder)
        return model

    return make


def published(folder, to):
    """What may be published of a checkpoint."""
    to.mkdir()
    for name in ("swiftkv.safetensors", "config.json"):
        shutil.copy(folder / name, to)
    return to


@pytest.mark.parametrize("name", BASES)
@torch.no_grad()
def test_every_form_is_the_whole_checkpoint(name, made, tmp_path):
    model, tokens = made(name), random_ids(2, 24)
    linked, dtype = tmp_path / "linked", model.dtype
    save_model(model, tmp_path / "whole", tokenizer=byte_tokenizer())
    attach.main(
        [str(word) for word in (tmp_path / "base", published(linked, tmp_path / "small"), tmp_path / "attached")]
    )
    shutil.copytree(linked, tmp_path / "copied")  # follows links
    expected = load_swiftkv(tmp_path / "whole", dtype)(tokens).logits
    assert not torch.equal(load_base(tmp_path / "base", dtype)(tokens).logits, expected)
    for folder in (linked, tmp_path / "attached", tmp_path / "copied"):
        assert torch.equal(load_swiftkv(folder, dtype)(tokens).logits, expected)
        if name != "FP8":  # which transformers reads with another package
            plain = AutoModelForCausalLM.from_pretrained(folder)
            assert plain.dtype == dtype and torch.equal(plain(tokens).logits, expected)
    whole, parts = stored(tmp_path / "whole"), stored(linked)
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[key].float(), tensor.float()) for key, tensor in whole.items())
    assert {parts[key].dtype for key in parts if key.endswith("norm_swiftkv.weight")} == {dtype}
    own = [file for file in linked.iterdir() if file.suffix == ".safetensors" and not file.is_symlink()]
    assert [file.name for file in own] == ["swiftkv.safetensors"]


def test_the_same_weights_are_the_same_bytes(made, tmp_path):
    model, files = made(), set()
    for _ in range(12):
        save_model(model, tmp_path / "linked", base=tmp_path / "base")
        files.add((tmp_path / "linked/swiftkv.safetensors").read_bytes())
    assert len(files) == 1 and load_swiftkv(tmp_path / "linked")


def test_links_are_relative_to_a_base_that_is_named_so(made, tmp_path, monkeypatch):
    model, here = made(), tmp_path / "here"
    shutil.copytree(tmp_path / "base", here / "base")
    monkeypatch.chdir(here)
    save_model(model, here / "results/new", base="base")
    save_model(model, here / "results/fixed", base=here / "base")
    moved = here.rename(tmp_path / "moved")
    load_any(moved / "results/new")
    with refused(f"{here}/base/model.safetensors of the base .* is gone"):
        load_any(moved / "results/fixed")


def change(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage, words", [(lambda file: file.unlink(), "is gone"), (change, "has changed")])
def test_a_base_that_is_gone_or_changed_is_one_sentence(made, tmp_path, damage, words):
    config = made("several files").config
    linked = tmp_path / "linked"
    jobs = [
        PlannedJob("distill", outputs=(f"{tmp_path}/checkpoints/m/new/config.json",)),
        PlannedJob("score", inputs=tuple(f"{tmp_path}/checkpoints/m/{name}/config.json" for name in ("new", "old"))),
    ]
    for name in ("new", "old"):  # what a job makes anew is not checked
        shutil.copytree(linked, tmp_path / "checkpoints/m" / name, symlinks=True)
    next((tmp_path / "checkpoints/m/new").glob("base-*")).unlink()
    check_bases(jobs)
    damaged = sorted((tmp_path / "base").glob("model-*"))[1]
    damage(damaged)
    for reads in (load_swiftkv, load_any, lambda folder: check_tensors(folder, config), lambda _: check_bases(jobs)):
        with refused(f"{damaged} of the base model that .* {words}") as caught:
            reads(linked)
        assert "\n" not in str(caught.value)


def test_what_is_no_part_of_a_checkpoint_is_refused(made, tmp_path, capsys):
    made()
    small = published(tmp_path / "linked", tmp_path / "small")
    change(tmp_path / "base/model.safetensors")
    for words, sentence in (
        ([tmp_path / "base", small], "not the base that .*: its model.safetensors is another"),
        ([tmp_path / "base", tmp_path / "base"], "swiftkv.safetensors does not exist"),
        (["org/absent", small, "--revision", "v1"], "'org/absent' is no folder, .*revision 'v1'"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{sentence}"):
            attach.main([*map(str, words), str(tmp_path / "out")])
    with refused("attach BASE"):
        load_swiftkv(small)
    assert not (tmp_path / "out").exists()


def test_a_base_of_the_hub_is_fetched_at_its_revision(made, tmp_path, monkeypatch):
    made()
    fetched = []
    monkeypatch.setattr(
        attach, "snapshot_download", lambda *name, **how: fetched.append((name, how)) or tmp_path / "base"
    )
    attach.main(
        ["org/base", str(published(tmp_path / "linked", tmp_path / "small")), str(tmp_path / "out"), "--revision=v1"]
    )
    ((name, how),) = fetched
    assert (name, how["revision"]) == (("org/base",), "v1") and "*.safetensors" in how["allow_patterns"]
    assert load_any(tmp_path / "out").spec == SwiftKVSpec(6, 3)
    assert read_json(tmp_path / "out/tokenizer.json") == read_json(tmp_path / "base/tokenizer.json")
