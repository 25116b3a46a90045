"""What every rule with GPUs asks SLURM for at paper scale: the sbatch lines of a real controller, taken by a stand-in."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
SNAKEMAKE = Path(sys.executable).with_name("snakemake")

# Takes the job and reports it failed at once, so that the controller ends.
STAND_INS = {
    "sbatch": 'printf "%s\\0" "$@" >> "$TAKEN"; printf "\\n" >> "$TAKEN"; echo $((1 + $(wc -l < "$TAKEN")))',
    "squeue": 'for number in $(seq 100); do echo "$number|FAILED"; done',
    "scontrol": 'echo "MinJobAge = 3600 sec"',
    "sacctmgr": "echo swiftkv",
    "sacct": "",
}
EIGHT, SEVENTY, HUGE = "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"
PANEL = ("arc-easy", "hellaswag-completion", "lambada", "mmlu-continuation", "gsm8k-bits", "mbpp-bits", "ifeval")
# Targets, and what has to lie there for them to be the next job.
TARGETS = {
    f"results/similarity/{EIGHT}.json": ["data/ultrachat/train.jsonl"],
    f"results/checkpoints/{EIGHT}/swiftkv-50": [f"packed/{EIGHT}/distillation.safetensors"],
    f"results/checkpoints/{SEVENTY}/swiftkv-50": [f"packed/{SEVENTY}/distillation.safetensors"],
    f"results/checkpoints/{HUGE}/swiftkv-50": [f"packed/{HUGE}/distillation.safetensors"],
    f"results/moments/{EIGHT}/distillation.safetensors": [],
    f"results/starts/{EIGHT}.json": [f"moments/{EIGHT}/distillation.safetensors", "data/heldout.jsonl"],
    f"results/scores/{EIGHT}/baseline/auto/gsm8k.json": [],
    f"results/scores/{SEVENTY}/baseline/auto/gsm8k.json": [],
    f"results/scores/{HUGE}/baseline/auto/gsm8k.json": [],
    f"results/scores/{EIGHT}/baseline/auto/arc-easy.json": [f"questions/{task}" for task in PANEL],
    f"results/fidelity/{EIGHT}/swiftkv-25/auto.json": [f"checkpoints/{EIGHT}/swiftkv-25", "data/heldout.jsonl"],
    f"results/early_exit/{EIGHT}/swiftkv-50-early-exit.json": [f"checkpoints/{EIGHT}/swiftkv-50-early-exit"],
    f"results/serving/batch-2k/{EIGHT}/baseline/auto.json": [],
    f"results/serving/interactive-2k/{SEVENTY}/baseline/auto.json": [],
    f"results/serving/kv-capacity/{HUGE}/baseline/auto.json": [f"dummy/{HUGE}/baseline"],
}  # fmt: skip


def submitted(folder, profile):
    """The sbatch lines of every target, sorted, without what differs from run to run."""
    programs = folder / "bin"
    programs.mkdir()
    for name, script in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    (folder / "data").mkdir()
    for model in (EIGHT, SEVENTY, HUGE):
        TARGETS[f"results/scores/{model}/baseline/auto/gsm8k.json"] += [
            f"models/{model}/source.json",
            "questions/gsm8k",
        ]
    for inputs in TARGETS.values():
        for name in inputs:
            path = folder / "results" / name
            if path.suffix or "." in path.name and "/dummy/" not in name and "/checkpoints/" not in name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            else:
                path.mkdir(parents=True, exist_ok=True)
    taken = folder / "taken"
    taken.touch()
    command = [
        SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", folder, "--profile", profile, "--retries", "0",
        "--slurm-init-seconds-before-status-checks", "1", "--slurm-status-command", "squeue",
        "--slurm-logdir", folder / "logs", "--rerun-triggers", "mtime", "--", *TARGETS,
    ]  # fmt: skip
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TAKEN": str(taken)}
    run = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    lines = []
    for line in taken.read_text().splitlines():
        words = line.rstrip("\0").split("\0")
        pairs = re.sub(r"--(parsable|export=ALL|job-name \S+|output \S+) ?", "", shlex.join(words))
        pairs = re.sub(r" -D \S+| --wrap=.*", "", pairs)
        lines.append(pairs.replace(str(folder), "."))
    return sorted(lines)


@pytest.mark.parametrize("site", ["slurm", "slurm-untyped"])
def test_paper_scale_asks_for_what_it_needs(tmp_path, site):
    lines = submitted(tmp_path, ROOT / "profiles" / site)
    assert lines == (GOLDEN / f"sbatch-{site}.txt").read_text().splitlines(), "\n".join(lines)
