"""Advice on a model by its config.json alone, and plans of what it writes."""

import re
import types

import pytest
from tests.conftest import refused
from tests.programs import ROOT, read_yaml, write_model
from tests.quantized import AWQ, FOUR_BITS, GPTQ, QUANTIZATION

from pipeline.artifacts import contents
from pipeline.config.sources import LocalModel
from pipeline.run import sizes
from pipeline.run.advise import advise, best_layer, describe, measured
from pipeline.run.jobs import Profile, read_config, read_profile
from pipeline.run.sizes import Size
from pipeline.sources import check_description
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base


def shape(name):
    return read_json(ROOT / f"resources/architectures/{name}.json")["config"]


LLAMA, MOE = shape("llama-3.2-1b"), shape("qwen3-30b-a3b")
LARGE = {"hidden_size": 12288, "intermediate_size": 28672, "num_hidden_layers": 88, "num_attention_heads": 96}  # 123B
LARGER = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
}  # 235B
GEMMA = {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "sliding_window": 1024}}
HYBRID = {"model_type": "qwen3_next", "linear_num_key_heads": 16, "num_experts": 512, "sliding_window": None}
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GPU = Profile(ROOT / "profiles/gpu", cores=2, resources={"gpu": 1})


def folder(path, config):
    path.mkdir()
    write_json(path / "config.json", config)
    return str(path)


def advised(tmp_path, config, profile, output="own.yaml"):
    """What is printed about a model with weights, and the configuration of the profile with what is written."""
    model, output = write_model(tmp_path / "My-Model", config), tmp_path / output
    parts = list(advise(str(model), profile, output))
    return parts, read_config(read_profile(profile.folder, [str(output)]))


def test_the_examples_of_recipes_can_be_uncommented(tmp_path):
    advised(tmp_path, LLAMA, GPU)
    file = tmp_path / "own.yaml"
    before = read_config(read_profile(GPU.folder, [str(file)]))
    file.write_text(re.sub(r"^( *)# (?=.*:\s*($|\{))", r"\1", file.read_text(), flags=re.MULTILINE))
    after = read_config(read_profile(GPU.folder, [str(file)]))
    own = after.variants.keys() - before.variants.keys()
    for variant in {"swiftkv-50", *own}:
        recipe = after.recipe("own", after.variants[variant].recipe)
        assert after.spec("own", variant) and recipe.learning_rate != before.recipe("own", "distillation").learning_rate
    assert own and after.recipe("llama-3.1-8b", "distillation") == before.recipe("llama-3.1-8b", "distillation")


@pytest.mark.parametrize("profile", ["gpu", "local"])  # swiftkv-50 stands in for swiftkv-40 in local
def test_the_table_shows_the_checkpoint_of_the_commands(tmp_path, profile):
    parts, config = advised(tmp_path, LLAMA, read_profile(profile))
    variant = re.search(r"checkpoints/own/(\S+)/config.json", parts[-1])[1]
    assert [variant, "auto"] in contents.cases(config, config.entries["own_quality"]["variants"])


def test_numbers_are_those_of_the_cost_model_one_a_cell(tmp_path):
    _, costs, whole, first, advice, written = advise(folder(tmp_path / "m", LLAMA), GPU, tmp_path / "mine.yaml")
    rows = {(cells[0], cells[3]): cells for cells in map(str.split, costs.splitlines()[3:])}
    half, grouped = rows["8", "1"], rows["8", "4"]
    # 16 or 10 caches of 8 heads of 64, keys and values, 2 bytes
    assert half[5] == "32,768" and grouped[5] == "20,480"
    assert 3 < float(half[-1]) < 3.4  # README's plan
    assert 0.5 < float(half[4]) / float(rows["16", "1"][4]) < 0.53
    for text, most in ((whole, 2.6), (first, 2.5)):
        heads, _, unchanged, *_, quarter = (line.split() for line in text.splitlines()[1:])
        assert len(quarter) == len(heads) - 3 == 7  # of `512 in` and the like
        assert unchanged[3:] == ["1.00x"] * 4 and most < float(quarter[-1][:-1]) < 16 / 6
    assert "l = 10 without AcrossKV" in advice and "\n" not in advice
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
    ("config", "profile", "gpus", "nodes"),
    [
        (MOE | LARGER | {"num_attention_heads": 64}, "slurm", (32, 8, 8), 4),
        (shape("mistral-small-2409") | LARGE, "slurm", (32, 8, 4), 4),
        (shape("llama-3.1-405b") | {"quantization_config": QUANTIZATION}, "slurm", (32, 8, 8), 4),
        (MOE, "slurm", (8, 2, 1), 1),
        (MOE, "gpu", (1, 1, 1), 1),
        (MOE, "one-gpu", (1, 1, 1), 1),
        (MOE, "local", (0, 0, 0), 1),
    ],
)
def test_gpus_are_those_that_every_batch_and_the_machines_have(tmp_path, config, profile, gpus, nodes):
    parts, written = advised(tmp_path, config, read_profile(profile))
    own = written.models["own"]
    assert (own.gpus.distill, own.gpus.score, own.gpus.serve, own.nodes.distill) == (*gpus, nodes)
    for recipe in written.recipes:
        written.recipe("own", recipe).accumulation(max(1, gpus[0]))
    assert any("may not fit" in part for part in parts) == (gpus[0] == 1)
    if profile == "slurm" and config is MOE:  # as the paper's configuration has it
        assert own.gpus == written.models["qwen3-30b-a3b"].gpus and own.nodes == written.models["qwen3-30b-a3b"].nodes


def test_weights_that_no_job_has_the_gpus_for_are_one_sentence(tmp_path):
    for profile, config in (("gpu", shape("llama-3.1-70b")), ("slurm", shape("llama-3.1-405b"))):
        with refused(f"GPUs? of 80 GB that a job has with profile {profile}"):
            advised(tmp_path, config, read_profile(profile))
        assert not (tmp_path / "own.yaml").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LLAMA | {"quantization_config": AWQ}, "'awq'"),
        (LLAMA | {"quantization_config": GPTQ}, "'gptq'"),
        (LLAMA | {"quantization_config": FP8_BLOCKS}, "'fp8'"),
        (LLAMA | {"quantization_config": FOUR_BITS}, "'pack-quantized'"),
        (LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "'bitsandbytes'"),
        (MOE | {"quantization_config": FP8_BLOCKS}, "quantized experts"),
    ],
)
def test_weights_that_loading_refuses_are_refused_by_advice_plan_and_before_downloads(
    tmp_path, monkeypatch, config, words
):
    model, scale = write_model(tmp_path / "model", config), read_config(read_profile("gpu"))
    entry = scale.models["llama-3.2-1b"]
    local = entry.model_copy(update={"source": LocalModel(local=str(model)), "architecture": None})
    scale.models["llama-3.2-1b"] = local
    layers = config["num_hidden_layers"]
    for refuse in (
        lambda: list(advise(str(model), GPU, tmp_path / "own.yaml")),
        lambda: Size.of(scale, "llama-3.2-1b"),
        lambda: check_description(model, "it", layers, template=True),
        lambda: load_base(model),
    ):
        with refused(words):
            refuse()
    assert not (tmp_path / "own.yaml").exists()


@pytest.mark.parametrize("layers", [2, 3, 4, 8, 12])
def test_each_l_is_there_once_and_every_variant_can_be_made(tmp_path, layers):
    parts, config = advised(tmp_path, LLAMA | {"num_hidden_layers": layers}, read_profile("smoke"))
    own = config.models["own"]
    assert len(set(own.num_key_value_layers.values())) == len(own.num_key_value_layers)
    rows = [tuple(line.split()[:4]) for line in parts[1].splitlines()[3:]]
    assert len(set(rows)) == len(rows)
    variants = config.entries["own_quality"]["variants"]
    assert variants[0] == "baseline" and all(config.spec("own", variant) for variant in variants[1:])


def test_one_layer_has_none_to_skip(tmp_path):
    with refused("one layer"):
        advised(tmp_path, LLAMA | {"num_hidden_layers": 1}, GPU)


@pytest.mark.parametrize(
    ("profile", "name"), [("gpu", "llama-3.1-8b"), ("local", "smollm2-135m"), ("local", "speed_and")]
)
def test_an_output_with_the_name_of_a_model_or_table_is_refused(tmp_path, profile, name):
    with refused(f"{name!r}.*OUTPUT="):
        advised(tmp_path, LLAMA, read_profile(profile), f"{name}.yaml")
    assert not (tmp_path / f"{name}.yaml").exists()


def test_a_name_that_yaml_reads_as_a_truth_is_a_name(tmp_path):
    assert "no" in advised(tmp_path, LLAMA, GPU, "no.yaml")[1].models


def test_a_file_of_a_checkpoint_and_its_folder_in_the_hub_cache_are_the_checkpoint(tmp_path):
    cached = tmp_path / "models--org--My-Llama"
    for commit in ("abc", "def"):
        write_model(cached / "snapshots" / commit, LLAMA)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("def")
    snapshot = cached / "snapshots/def"
    for model in (
        cached,
        snapshot,
        snapshot / "config.json",
        snapshot / "model.safetensors",
        snapshot / "tokenizer.json",
    ):
        assert describe(str(model)) == (LLAMA, {"local": str(snapshot)}, "My-Llama")


def test_what_cannot_be_served_is_written_as_such(tmp_path):
    """Heads that vLLM serves on GPUs alone, and latent attention that it serves nowhere."""
    small = LLAMA | {"head_dim": 16}
    *_, words = advised(tmp_path, small, GPU)[0]
    assert "vllm serve" in words
    for config, profile in ((small, "smoke"), (shape("deepseek-v2-lite"), "slurm")):
        (*_, words), written = advised(tmp_path, config, read_profile(profile), f"{profile}-own.yaml")
        assert "vllm serve" not in words and "vLLM" in written.models[f"{profile}-own"].unmeasured("serving")


def test_a_model_that_a_plan_refuses_leaves_no_file(tmp_path):
    model = write_model(tmp_path / "base", LLAMA)
    (model / "tokenizer_config.json").unlink()
    with refused("no chat template"):
        list(advise(str(model), GPU, tmp_path / "own.yaml"))
    assert not (tmp_path / "own.yaml").exists()


@pytest.mark.parametrize("name", ["org/name@main", "org/my--model", "org/name.git", "org/a name", "-org/name"])
def test_a_name_that_the_hub_refuses_is_one_sentence_with_the_rule(tmp_path, name):
    with refused("org/name, of letters, digits" + (".*`revision`" if "@" in name else "")):
        next(advise(name, GPU, tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GEMMA, "neither trained, scored nor served: .*'gemma3'.*sliding windows, parts beside"),
        (HYBRID, "'qwen3_next'.*has recurrent layers.*, experts$"),
        (HYBRID | {"text_config": None}, "'qwen3_next'.*has recurrent layers.*, experts$"),
        (LLAMA | {"model_type": "llama_swiftkv"}, "is a SwiftKV checkpoint"),
        (LLAMA | {"hidden_size": None}, "hidden_size"),
        ([LLAMA], "is no config.json"),
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
