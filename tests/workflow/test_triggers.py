"""Which rules a changed setting plans again: those whose results it changes, and no others."""

import os

import pytest
import yaml
from tests.programs import ROOT, read_yaml, snakemake, write_model

from pipeline.config import load
from pipeline.run.jobs import dry_run

RECIPES = load()["recipes"]
FILES = {".json", ".jsonl", ".csv", ".safetensors", ".tex", ".md", ".html", ".pdf", ".png", ".svg"}
SIZES = (ROOT / "resources/architectures/llama-3.2-1b.json").read_text()
DRAWN = {"table", "figure", "report_page"}
MODEL = "results/smoke/models/mine/source.json"
MINE = {
    "title": "Mine", "source": {"local": "model"}, "num_hidden_layers": 8, "num_key_value_layers": {"50": 4},
    "zero_stage": 2, "nodes": {"distill": 1}, "gpus": {"distill": 0, "score": 0, "serve": 0},
}  # fmt: skip


def words(folder, config=None):
    """Snakemake's command line of the smoke profile and a changed configuration."""
    (folder / "mine.yaml").write_text(yaml.safe_dump({"models": {"mine": MINE}}))
    (folder / "change.yaml").write_text(yaml.safe_dump(config or {}))
    files = [ROOT / "profiles/smoke/override.yaml", folder / "mine.yaml", folder / "change.yaml"]
    where = ["--snakefile", ROOT / "Snakefile", "--directory", folder, "--profile", ROOT / "profiles/smoke"]
    return [*where, "--configfile", *files, "--", "all", MODEL]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which everything seems to have been made with the settings of the profile."""
    folder = tmp_path_factory.mktemp("finished")
    write_model(folder / "model", {"model_type": "llama", "num_hidden_layers": 8})
    for job in dry_run("--forceall", *words(folder)):
        for path in map(folder.joinpath, job.outputs):
            if path.suffix in FILES:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(SIZES if path.name == "source.json" else "{}")
            else:
                path.mkdir(parents=True)
    assert snakemake("--touch", "--forceall", *words(folder)).returncode == 0
    return folder


def planned(folder, config=None):
    """The rules that a changed configuration plans, without those that draw."""
    return {job.rule for job in dry_run(*words(folder, config))} - DRAWN


def recipes(**changes):
    return {"recipes": {name: changes for name in RECIPES}}


def backwards(content):
    """The same mappings with their keys in reverse order."""
    if isinstance(content, dict):
        return {key: backwards(content[key]) for key in reversed(content)}
    return list(map(backwards, content)) if isinstance(content, list) else content


SCORES = {"score", "score_panel", "score_benchmarks"}
BELOW = {"distill", *SCORES, "fidelity", "evaluate_reading", "evaluate_early_exit", "measure"}  # a recipe
TRIGGERS = {
    "a point's length": ({"serving": {"points": {"batch-2k": {"total_tokens": 600}}}}, {"measure"}),
    "engine": ({"serving": {"engine": {"max_num_seqs": 64}}}, {"measure"}),
    "quantization": ({"models": {"tiny-random": {"quantization": "fp8"}}}, {"measure"}),
    "questions": ({"tasks": {"mmlu": {"limit": 3}}}, {"score_benchmarks"}),
    "chats": ({"fidelity": {"documents": 3}}, {"fidelity"}),
    "passages": ({"reading": {"among": 1}}, {"evaluate_reading"}),
    "threshold": ({"early_exit": {"threshold": 0.5}}, {"evaluate_early_exit"}),
    "learning rate": (recipes(learning_rate=0.01), BELOW),
    "ZeRO stage": ({"models": {"tiny-random": {"zero_stage": 3}, "tiny-random-moe": {"zero_stage": 3}}}, BELOW),
    "ridge": (recipes(start_ridge=0.1), BELOW | {"moments", "reading_moments"}),
    "number format": (recipes(dtype="float32"), BELOW | {"moments", "reading_moments", "teacher_states"}),
    "length of rows": (recipes(max_length=128), BELOW | {"moments", "reading_moments", "teacher_states", "pack"}),
    "titles": (
        {"models": {"tiny-random": {"title": "T"}}, "tasks": {"mmlu": {"title": "T", "chance": 0.2}}},
        set(),
    ),
    "saving": (recipes(checkpoint_minutes=1, checkpoint_every=1, gradient_checkpointing=True), set()),
    "another recipe": ({"recipes": {"another": RECIPES["tuned"]}}, set()),
    "time limits": ({"gpu_jobs": {"longest_runtime": 600}}, set()),
    "start": ({"serving": {"engine": {"start_timeout": 5}}}, set()),
    "order of keys": (backwards(read_yaml(ROOT / "profiles/smoke/override.yaml")), set()),
}


@pytest.mark.parametrize("setting", TRIGGERS)
def test_a_setting_plans_what_it_changes(finished, setting):
    change, rules = TRIGGERS[setting]
    assert planned(finished, change) == rules


def test_a_weight_file_plans_its_model(finished):
    weights = finished / "model/model.safetensors"
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))  # as a copy that keeps the older file's time
    assert planned(finished) == {"resolve_model"}
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))


def trained(folder, config):
    """The models and variants that a changed configuration trains again."""
    jobs = [job.wildcards for job in dry_run(*words(folder, config)) if job.rule == "distill"]
    return {(job["model"], job["variant"]) for job in jobs}


def test_a_recipe_trains_again_what_takes_its_keys(finished):
    """Those of a model are its own; those of a recipe are also of recipes like it that do not state the same keys."""
    everything = trained(finished, recipes(learning_rate=0.01))
    own = trained(finished, {"models": {"tiny-random-moe": {"recipe": {"learning_rate": 0.01}}}})
    assert own == {(model, variant) for model, variant in everything if model == "tiny-random-moe"} != everything
    again = trained(finished, {"recipes": {"distillation": {"learning_rate": 0.01}}})
    heirs = {"distillation", "lm-loss", "full-model", "math-code", "early-exit"}
    variants = load()["variants"]
    assert again == {(model, variant) for model, variant in everything if variants[variant]["recipe"] in heirs}
    assert again < everything
