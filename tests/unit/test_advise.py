"""Advice on a model by its config.json alone, and plans of what it writes."""

import types

import pytest
from tests.conftest import refused
from tests.programs import ROOT, read_yaml, write_model

from pipeline.run import sizes
from pipeline.run.advise import advise, best_layer, measured
from pipeline.run.jobs import Profile, read_config, read_profile
from pipeline.run.sizes import Size
from swiftkv.io import read_json, write_json

LLAMA = read_json(ROOT / "resources/architectures/llama-3.2-1b.json")["config"]
GEMMA = {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "sliding_window": 1024}}
HYBRID = {"model_type": "qwen3_next", "linear_num_key_heads": 16, "num_experts": 512, "sliding_window": None}
GPU = Profile(ROOT / "profiles/gpu", cores=2, resources={"gpu": 1})


def folder(path, config):
    path.mkdir()
    write_json(path / "config.json", config)
    return str(path)


def test_numbers_are_those_of_the_cost_model(tmp_path):
    _, costs, requests, written = advise(folder(tmp_path / "m", LLAMA), GPU, tmp_path / "mine.yaml")
    rows = {tuple(line.split()[:1] + line.split()[-5:-4]): line.split() for line in costs.splitlines()[3:]}
    half, grouped = rows["8", "1"], rows["8", "4"]
    assert (
        half[-3] == "32,768" and grouped[-3] == "20,480"
    )  # 16 or 10 caches of 8 heads of 64, keys and values, 2 bytes
    assert 3 < float(half[-1]) < 3.4  # README's plan
    assert 0.5 < float(half[-4]) / float(rows["16", "1"][-4]) < 0.53
    whole, quarter = (requests.splitlines()[line].split() for line in (3, -1))
    assert whole[5:7] == ["1.00x", "1.00x"] and 2.6 < float(quarter[-1][:-1]) < 16 / 6
    assert "not written" in written and not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(("profile", "gpus"), [("gpu", 1), ("smoke", 0)])
def test_what_it_writes_is_a_configuration_that_no_other_model_overwrites(tmp_path, profile, gpus):
    output = tmp_path / "own.yaml"
    profile = read_profile(profile)

    def written(name, **changes):
        return list(advise(str(write_model(tmp_path / name, LLAMA | changes)), profile, output))[-1]

    assert "CONFIG=" in written("a") and written("a") == written("a")
    own = read_config(read_profile(profile.folder, [str(output)])).models["own"]
    assert own.gpus.distill == own.gpus.serve == gpus and own.num_key_value_layers["50"] == 8
    assert own.family == "llama" and Size.of(read_config(read_profile(profile.folder, [str(output)])), "own")
    with refused("OUTPUT="):
        written("b", num_hidden_layers=12)
    assert read_yaml(output)["models"]["own"]["num_hidden_layers"] == 16


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GEMMA, "neither trained, scored nor served: .*'gemma3'.*sliding windows, parts beside"),
        (HYBRID, "'qwen3_next'.*has recurrent layers.*, experts$"),
        (LLAMA | {"model_type": "llama_swiftkv"}, "is a SwiftKV checkpoint"),
        (LLAMA | {"hidden_size": None}, "hidden_size"),
        (None, "no .*config.json"),
    ],
)
def test_a_model_that_cannot_be_is_one_sentence(tmp_path, config, words):
    model = folder(tmp_path / "model", config) if config else str(tmp_path / "nothing")
    with refused(words):
        next(advise(model, GPU, tmp_path / "mine.yaml"))


def test_a_model_of_a_silent_hub_is_one_sentence(tmp_path):
    with refused("cannot be reached.*name its folder"):
        next(advise("org/silent", GPU, tmp_path / "mine.yaml"))


def test_a_plan_reads_the_size_from_the_hub_and_refuses_other_families(monkeypatch):
    config = read_config(read_profile("gpu", []))
    config.models["own"] = config.models["llama-3.2-1b"].model_copy(update={"architecture": None})
    monkeypatch.setattr(sizes, "hub_config", lambda name, revision: LLAMA)
    assert Size.of(config, "own").layers == 16
    monkeypatch.setattr(sizes, "hub_config", lambda name, revision: HYBRID)
    with refused("'qwen3_next'"):
        Size.of(config, "own")


@pytest.mark.parametrize(("share", "words"), [(0.8, "l = 10 (38 % skipped) keeps 80 %"), (0.99, "no l measured")])
def test_the_reading_curve_names_the_smallest_l_that_keeps_enough(tmp_path, monkeypatch, share, words):
    def member(layer, saved):
        return {"layer": layer, "tasks": {"squad": {"bits": [4 - saved, 5 - saved], "bits_without": [4, 5]}}}

    record = tmp_path / "copied.json"
    members = [member(*pair) for pair in ((16, 2.0), (8, 1.0), (10, 1.7), (12, 1.9))]
    write_json(record, {"result": {"members": members}})
    ended = types.SimpleNamespace(returncode=0)
    monkeypatch.setattr("subprocess.run", lambda *words, **settings: ended)
    monkeypatch.setattr("pipeline.run.advise.make_plan", lambda *arguments: None)
    monkeypatch.setattr("pipeline.run.advise.summary", lambda plan: "25 min")
    plan, found = measured(GPU, str(record), share, 16)
    assert plan == "25 min" and words in found and "upper bound" in found
    ended.returncode = 1
    with refused("not measured"):
        list(measured(GPU, str(record), share, 16))


@pytest.mark.parametrize(
    ("layers", "reduction", "layer"), [(16, 50, 8), (30, 50, 14), (36, 40, 22), (28, 62.5, 10), (2, 62.5, 1)]
)
def test_l_leaves_whole_groups(layers, reduction, layer):
    assert best_layer(layers, reduction) == layer
