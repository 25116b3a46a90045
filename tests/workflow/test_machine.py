"""What one machine has is what its jobs get: GPUs as models ask for them, memory as jobs take it. Else nothing starts."""

import os
import re
import runpy
import shlex
import sys

import pytest
import yaml
from tests.conftest import refused
from tests.programs import ROOT, read_yaml, run, snakemake, write_program

from pipeline import gpus

SMOKE = read_yaml(ROOT / "profiles/smoke/override.yaml")
TINY = "results/smoke/{}/tiny-random"
TARGETS = [
    "results/smoke/scores/tiny-random-moe/baseline/auto/hellaswag.json",
    f"{TINY.format('similarity')}.json",
    *(f"{TINY.format('scores')}/baseline/auto/{task}.json" for task in ("hellaswag", "gsm8k", "arc-easy")),
    f"{TINY.format('fidelity')}/baseline/auto.json",
    f"{TINY.format('serving/batch-2k')}/baseline/auto.json",
    f"{TINY.format('moments')}/distillation.safetensors",
    f"{TINY.format('early_exit')}/swiftkv-50-early-exit.json",
]
VARIANTS = [f"swiftkv-50{ending}" for ending in ("", "-across2", "-across4", "-lm-loss", "-math-code", "-mqa")]
# Snakemake where there are so many MB of memory, with another Python for the jobs.
PRETEND = """
import sys
from snakemake.cli import main
from pipeline.run import jobs
jobs.memory_mb, sys.executable = (lambda: int(sys.argv[1])), sys.argv[2]
main(sys.argv[3:])
"""
# Notes how many of its kind run, and fails: the job is over then.
PYTHON = 'mine=$(mktemp "$RUNNING/XXXXXX"); ls "$RUNNING" | wc -l >> "$NOTES"; sleep 0.2; rm "$mine"; exit 1\n'


@pytest.fixture
def start(tmp_path):
    """Snakemake in a folder of its own; its exit status and what it said."""

    def snakemake(*arguments, memory=16000):
        command = [sys.executable, "-c", PRETEND, memory, tmp_path / "bin/python", "--snakefile", ROOT / "Snakefile"]
        places = {name.upper(): str(tmp_path / name) for name in ("running", "notes")}
        ended = run(*command, "--directory", tmp_path, *arguments, cwd=tmp_path, **places)
        return ended.returncode, ended.stdout + ended.stderr

    (tmp_path / "running").mkdir()
    write_program(tmp_path / "bin/python", PYTHON)
    return snakemake


def make(folder, *checkpoints):
    """Files that Snakemake takes for finished: a model, chats and, newer than both, checkpoints of the model."""
    for name in (f"{TINY.format('models')}/source.json", "results/smoke/data/heldout.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))
    for checkpoint in checkpoints:
        (folder / checkpoint).mkdir(parents=True)
        (folder / checkpoint / "config.json").touch()


def test_jobs_share_the_memory_there_is(start, tmp_path):
    make(tmp_path, *(f"{TINY.format('checkpoints')}/{variant}" for variant in VARIANTS))
    targets = [f"{TINY.format('fidelity')}/{variant}/auto.json" for variant in VARIANTS]
    smoke = ["--profile", ROOT / "profiles/smoke", "--cores", 8, "--rerun-triggers", "mtime", "--", *targets]
    status, said = start(*smoke, memory=1500)
    assert status == 1 and not (tmp_path / "notes").exists()
    assert "\nerror: a job of rule fidelity takes 2000 MB of memory and there are 1500: " in said
    _, said = start(*smoke, memory=7000)
    assert said.count("8 cores and 7.0 GB of memory, so at most 3 of rule fidelity at once (2.0 GB each)\n") == 1, said
    numbers = [int(number) for number in (tmp_path / "notes").read_text().split()]
    assert len(numbers) == len(targets) and max(numbers) <= 3


def on_gpus(tmp_path, distill=1):
    """The smoke scale's configuration, with models on a GPU."""
    models = dict.fromkeys(SMOKE["models"], {"gpus": {"distill": distill, "score": 1, "serve": 1}})
    recipes = {name: {"micro_batch_size": 1} for name in SMOKE["recipes"]}
    file = tmp_path / "gpus.yaml"
    file.write_text(yaml.safe_dump({"models": models, "recipes": recipes}))
    return ["--configfile", ROOT / "profiles/smoke/override.yaml", file]


def test_jobs_with_gpus_take_turns(start, tmp_path, monkeypatch):
    monkeypatch.setenv(gpus.PRETEND, "1")
    make(tmp_path, *(f"{TINY.format('checkpoints')}/{variant}" for variant in VARIANTS))
    machine = ["--profile", ROOT / "profiles/gpu", "--resources", "gpu=8", "--cores", 8, "--rerun-triggers", "mtime"]
    start(
        *machine, *on_gpus(tmp_path), "--", *(f"{TINY.format('fidelity')}/{variant}/auto.json" for variant in VARIANTS)
    )
    assert (tmp_path / "notes").read_text().split() == ["1"] * len(VARIANTS)


def test_every_program_with_gpus_ends_where_it_sees_none(tmp_path, monkeypatch):
    smoke = ["--profile", ROOT / "profiles/smoke", *on_gpus(tmp_path), "--dry-run", "--printshellcmds"]
    planned = snakemake(*smoke, "--forceall", "--", *TARGETS)
    assert planned.returncode == 0, planned.stderr
    said = planned.stdout
    commands = dict(re.findall(r"^rule ([\w-]+):\n(?:.+\n)*?.*-m pipeline.stages (.*)", said, flags=re.MULTILINE))
    assert {"moments", "score_panel"} < set(commands), said
    rules = set(re.findall(r"^rule ([\w-]+):\n(?:    .+\n)*?    resources: .*\bgpu=1", said, flags=re.MULTILINE))
    assert len(rules) == len({rule for rule in commands if "--gpus" in commands[rule]}) == 10, rules
    # All recipes of this scale share them, also those with a fitted start.
    assert re.search(r" --layers \d", commands["moments"])
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.chdir(tmp_path)
    for rule in rules:
        words = shlex.split(commands[rule].replace("$((1 / 1))", "1"))
        monkeypatch.setattr(sys, "argv", ["stages", *words])
        with pytest.raises(SystemExit, match="^error: this job asks for 1 GPUs and sees 0 on"):
            runpy.run_module("pipeline.stages", run_name="__main__")
    assert len(threads) == len(rules)
    gpus.compute_with(None, 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # 0 is the processor, also beside GPUs


@pytest.mark.parametrize("visible, taken", [(None, "0,1"), ("7,5,3,1", "7,5")])
def test_a_job_takes_no_more_gpus_than_it_asks_for(monkeypatch, visible, taken):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    gpus.compute_with(None, 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken


def test_parts_of_a_gpu_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4f2a9b3c-5d1e-5b6f-8a7c-0123456789ab")
    with refused("a part of a GPU"):
        gpus.compute_with(None, 1)
    gpus.compute_with(None, None)
    gpus.compute_with(None, 0)


def test_a_model_that_would_get_fewer_gpus_is_refused_while_it_has_work_to_do(tmp_path):
    command = ["--snakefile", ROOT / "Snakefile", "--profile", ROOT / "profiles/gpu", "--rerun-triggers", "mtime"]
    command += ["--directory", tmp_path, *on_gpus(tmp_path, distill=2), "--dry-run"]
    checkpoint, fidelity = (TINY.format(place) + "/swiftkv-50" for place in ("checkpoints", "fidelity"))
    refused = snakemake(*command, "--", f"{checkpoint}/config.json")
    assert refused.returncode == 1
    sentence = "\nerror: model 'tiny-random' asks for 2 GPUs (gpus.distill) and this profile shares out 1: set"
    assert sentence in refused.stdout + refused.stderr
    make(tmp_path, checkpoint)
    planned = snakemake(*command, "--", f"{fidelity}/auto.json")
    assert planned.returncode == 0 and "rule fidelity:" in planned.stdout, planned.stderr
