"""What every rule with GPUs asks SLURM for at paper scale: the sbatch lines of a real controller, taken by a stand-in."""

import os
import re
import shlex
import shutil

import pytest
import yaml
from tests.programs import ROOT, SNAKEMAKE, read_yaml, run
from tests.unit.slurm_stand_ins import install

from pipeline.gpus import PRETEND

GOLDEN = ROOT / "tests" / "golden"

# Takes the job and reports it failed at once, so that the controller ends.
STAND_INS = {
    "sbatch": '[[ " $* " == *" --test-only "* ]] && exit\n'
    'exec 9>>"$TAKEN"; flock 9\n'  # several submit at a time
    'printf "%s\\0" "$@" >&9; printf "\\n" >&9; echo $((1 + $(wc -l < "$TAKEN")))',
    "squeue": 'for number in $(seq 100); do echo "$number|FAILED"; done',
    "sacct": "",
}
EIGHT, SEVENTY, HUGE = "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"
MODELS = (EIGHT, SEVENTY, HUGE)
THERE = [
    "data/ultrachat/train.jsonl",
    "data/heldout.jsonl",
    *(f"packed/{model}/distillation.safetensors" for model in MODELS),
]
MADE = [
    f"checkpoints/{EIGHT}/swiftkv-25/config.json",
    f"checkpoints/{EIGHT}/swiftkv-50-early-exit/config.json",
]
BITS = [f"{task}-bits" for task in ("arc-easy", "arc-challenge", "hellaswag", "mmlu", "gsm8k", "mbpp", "humaneval")]
PANEL = (*BITS, "arc-easy", "hellaswag-completion", "lambada", "mmlu-continuation", "ifeval")
FOLDERS = [f"questions/{task}" for task in (*PANEL, "gsm8k")]
TARGETS = [
    f"similarity/{EIGHT}.json", f"moments/{EIGHT}/tuned.safetensors",
    *(f"checkpoints/{model}/swiftkv-50/config.json" for model in MODELS),
    *(f"scores/{model}/baseline/auto/gsm8k.json" for model in MODELS), f"scores/{EIGHT}/baseline/auto/arc-easy.json",
    f"fidelity/{EIGHT}/swiftkv-25/auto.json",
    f"early_exit/{EIGHT}/swiftkv-50-early-exit.json",
    f"serving/batch-2k/{EIGHT}/baseline/auto.json", f"serving/interactive-2k/{SEVENTY}/baseline/auto.json",
    f"serving/kv-capacity/{HUGE}/baseline/auto.json",
]  # fmt: skip


def controller(folder, profile, *arguments):
    """A controller of every target that ended with an error, and the file with all that it submitted."""
    programs = install(folder / "bin", **STAND_INS)
    for name in [*THERE, *MADE]:
        (folder / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "results" / name).touch()
    sources = {f"models/{model}/source.json": ROOT / f"resources/architectures/{model}.json" for model in MODELS}
    for name, architecture in sources.items():
        (folder / "results" / name).parent.mkdir(parents=True)
        shutil.copyfile(architecture, folder / "results" / name)
    for name in FOLDERS:
        (folder / "results" / name).mkdir(parents=True)
    for name in [*THERE, *sources]:  # none is newer than what is made of it
        os.utime(folder / "results" / name, (1e9, 1e9))
    taken = folder / "taken"
    taken.touch()
    command = [
        SNAKEMAKE, "--snakefile", ROOT / "Snakefile", "--directory", folder, "--profile", profile, "--retries", "0",
        "--slurm-init-seconds-before-status-checks", "1", "--slurm-status-command", "squeue",
        "--slurm-logdir", folder / "logs", "--rerun-triggers", "params", *arguments, "--",
        *(f"results/{target}" for target in TARGETS),
    ]  # fmt: skip
    ended = run(*command, path=[programs], TAKEN=str(taken), **{PRETEND: "1"})
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended, taken


@pytest.mark.parametrize("site", ["slurm", "slurm-untyped"])
def test_paper_scale_asks_as_before(tmp_path, site):
    """But for what differs from run to run."""
    _, taken = controller(tmp_path, ROOT / "profiles" / site)
    lines = []
    for line in taken.read_text().splitlines():
        words = [word for word in line.rstrip("\0").split("\0") if not word.startswith("--wrap=")]
        lines.append(re.sub(r"--parsable |--export=ALL |--job-name \S+ |--output \S+ | -D \S+", "", shlex.join(words)))
    lines.sort()
    assert lines == (GOLDEN / f"sbatch-{site}.txt").read_text().splitlines(), "\n".join(lines)


def test_a_site_may_have_gpus_as_gres(tmp_path):
    """The number on each node; and processors as of a task, because their number by GPU needs --gpus."""
    profile = shutil.copytree(ROOT / "profiles/slurm", tmp_path / "profile")
    site = read_yaml(profile / "site.yaml")
    site["gpu_jobs"]["gres"] = f"gpu:{site['gpu_jobs']['resources'].pop('gpu_model')}"
    (profile / "site.yaml").write_text(yaml.safe_dump(site))
    _, taken = controller(tmp_path, profile)
    lines = taken.read_text().replace("\0", " ").splitlines()
    assert len(lines) == len((GOLDEN / "sbatch-slurm.txt").read_text().splitlines())
    assert not any("--gpus" in line or "--cpus-per-gpu" in line for line in lines)
    (spread,) = (line for line in lines if "distill_wildcards_llama-3.1-70b" in line)
    assert all(words in spread for words in ("--nodes=4", "--ntasks=4", "--cpus-per-task=96", "--gres=gpu:h100:8"))
    (single,) = (line for line in lines if "similarity" in line)
    assert "--gres=gpu:h100:1" in single and "--cpus-per-task=12" in single


def test_a_profile_cannot_take_a_measurements_node_away_unseen(tmp_path):
    ended, taken = controller(
        tmp_path, ROOT / "profiles/slurm", "--set-resources", "measure:slurm_extra='--mail-type=FAIL'"
    )
    assert "error: the profile's slurm_extra of rule measure replaces --exclusive" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr and not taken.read_text()
