"""A killed rule leaves nothing that looks finished and loses no finished work; touched sources and more GPUs start nothing.

The checkpoint of a finished training is what its folder has to have for others, and nothing else.
"""

import subprocess
import time

import psutil
import yaml
from tests.programs import ROOT, SNAKEMAKE, environment, read_yaml, run, snakemake

from pipeline.artifacts.published import read_csv

STEPS = 24


def test_killed_training_goes_on_and_a_touched_source_changes_nothing(tmp_path):
    # The smoke configuration, writing to a folder of its own and training a little longer.
    override = read_yaml(ROOT / "profiles/smoke/override.yaml")
    override["pathvars"] = {name: str(tmp_path / name) for name in ("results", "logs", "benchmarks")}
    small = {"dtype": "float32", "teacher_states": "online", "max_length": 64}
    override["recipes"]["distillation"] |= {"max_steps": STEPS, "checkpoint_every": 2, **small}
    for recipe in override["recipes"].values():
        recipe["micro_batch_size"] = 1
    (tmp_path / "override.yaml").write_text(yaml.safe_dump(override))
    override["models"]["tiny-random"]["gpus"]["distill"] = 2
    (tmp_path / "more_gpus.yaml").write_text(yaml.safe_dump(override))
    checkpoint = tmp_path / "results/checkpoints/tiny-random/swiftkv-50"
    losses = tmp_path / "results/training/tiny-random/swiftkv-50.csv"

    def command(configuration="override.yaml"):
        words = ["--cores", "1", "--configfile", tmp_path / configuration, "--rerun-incomplete", "--nolock"]
        return [*words, "--rerun-triggers", "params", "input", "mtime", "--", checkpoint / "config.json", losses]

    # Killed after its first saved state, the training leaves no checkpoint and the workflow fails.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([SNAKEMAKE, *command()], env=environment(), **quiet)
    states = tmp_path / "results/training-state/tiny-random/swiftkv-50"
    deadline = time.monotonic() + 300
    while not list(states.glob("*/state.json")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    for process in psutil.Process(running.pid).children(recursive=True):
        if {"pipeline.stages", "distill"} <= set(process.cmdline()):
            process.kill()
    assert running.wait() != 0
    assert not checkpoint.exists() and not losses.parent.parent.exists()

    # The same command goes on from that state.
    again = run(SNAKEMAKE, *command())
    assert again.returncode == 0, again.stderr
    assert "continuing after step" in again.stderr + again.stdout
    assert [int(row["step"]) for row in read_csv(losses)] == list(range(1, STEPS + 1))
    weights = {"config.json", "generation_config.json", "base-model.safetensors", "swiftkv.safetensors"}
    weights.add("model.safetensors.index.json")
    tokenizer = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in checkpoint.iterdir()} == weights | tokenizer | {"README.md"}
    assert f"| training | {STEPS} steps, " in (checkpoint / "README.md").read_text()

    # Finished work stays finished when sources are touched, as a fresh checkout does, and on another number of GPUs.
    for file in [*ROOT.glob("workflow/**/*.py"), *ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/rules/*.smk")]:
        file.touch()
    for configuration in ("override.yaml", "more_gpus.yaml"):
        assert "Nothing to be done" in snakemake("--dry-run", *command(configuration)).stdout
