"""A killed rule leaves nothing that looks finished and loses no finished work; touched sources and more GPUs start nothing."""

import csv
import subprocess
import time

import psutil
import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, environment, run, snakemake

STEPS = 24


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    """The smoke configuration, writing to a folder of its own and training a little longer."""
    folder = tmp_path_factory.mktemp("scale")
    override = yaml.safe_load((ROOT / "profiles/smoke/override.yaml").read_text())
    override["pathvars"] = {name: str(folder / name) for name in ("results", "logs", "benchmarks")}
    small = {"dtype": "float32", "teacher_states": "online", "max_length": 64}
    override["recipes"]["distillation"] |= {"max_steps": STEPS, "checkpoint_every": 2, **small}
    for recipe in override["recipes"].values():
        recipe["micro_batch_size"] = 1
    (folder / "override.yaml").write_text(yaml.safe_dump(override))
    return folder


def checkpoint(scale):
    return scale / "results/checkpoints/tiny-random/swiftkv-50"


def loss_log(scale):
    return scale / "results/training/tiny-random/swiftkv-50.csv"


def command(scale, *arguments):
    """Words after `snakemake` that train the smoke model's swiftkv-50 variant."""
    return [
        "--cores", "1", "--configfile", scale / "override.yaml", "--rerun-incomplete",
        "--rerun-triggers", "params", "input", "mtime", "--nolock", *arguments, "--", checkpoint(scale), loss_log(scale),
    ]  # fmt: skip


def plan(scale, *arguments):
    return snakemake(*command(scale, "--dry-run", *arguments)).stdout


def test_killed_training_goes_on_and_a_touched_source_changes_nothing(scale):
    # Killed after its first saved state, the training leaves no checkpoint and the workflow fails.
    running = subprocess.Popen(
        [SNAKEMAKE, *command(scale)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    states = scale / "results/training-state/tiny-random/swiftkv-50"
    deadline = time.monotonic() + 300
    while not list(states.glob("*/state.json")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    for process in psutil.Process(running.pid).children(recursive=True):
        if {"pipeline.stages", "distill"} <= set(process.cmdline()):
            process.kill()
    assert running.wait() != 0
    assert not checkpoint(scale).exists() and not (scale / "results/training").exists()

    # The same command goes on from that state.
    again = run(SNAKEMAKE, *command(scale))
    assert again.returncode == 0, again.stderr
    assert "continuing after step" in again.stderr + again.stdout
    with loss_log(scale).open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, STEPS + 1))

    # Finished work stays finished when sources are touched, as a fresh checkout does.
    for file in [*ROOT.glob("workflow/**/*.py"), *ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/rules/*.smk")]:
        file.touch()
    assert "Nothing to be done" in plan(scale)

    # Nor does it matter how many GPUs another training would get.
    more = yaml.safe_load((scale / "override.yaml").read_text())
    more["models"]["tiny-random"]["gpus"]["distill"] = 2
    (scale / "more.yaml").write_text(yaml.safe_dump(more))
    assert "Nothing to be done" in plan(scale, "--configfile", scale / "more.yaml")
    more = plan(scale, "--printshellcmds", "--force", "--configfile", scale / "more.yaml")
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=3600 torchrun" in more  # its ranks' state may take longer than 30 seconds

    # A lost output of a finished training is only saved again.
    weights = checkpoint(scale) / "model.safetensors"
    before = weights.read_bytes()
    loss_log(scale).unlink()
    saved = run(SNAKEMAKE, *command(scale))
    assert saved.returncode == 0 and f"continuing after step {STEPS} of {STEPS}" in saved.stderr + saved.stdout
    assert weights.read_bytes() == before
