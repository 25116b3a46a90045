"""Where jobs find their Python: one line of a profile chooses. Only jobs that say so ask the hub."""

import os
import shlex
import shutil
import socket
import subprocess
import sys

import pytest
from tests.programs import ROOT, SNAKEMAKE, run, write_program

from pipeline.gpus import PRETEND

HELDOUT = "results/smoke/data/heldout.jsonl"
SEVENTY = "results/checkpoints/llama-3.1-70b/swiftkv-50/config.json"
# Notes which Python was asked for what, and fails: the job is over then.
PYTHON = 'echo "{name}; {variables}; $@" >> "$NOTES"; exit 1\n'
STAND_INS = {
    # Starts a program as if in an image: with the image's PATH, and the mark that Apptainer leaves.
    "apptainer": """
        [ "$1" = --version ] && { echo apptainer version 1.3.4; exit; }
        printf '%q ' apptainer "${@:1:$#-1}" >> "$NOTES"; echo >> "$NOTES"
        while [ "$1" != bash ]; do shift; done
        APPTAINER_CONTAINER=gpu.sif PATH="$IMAGE_PATH" exec "$@" """,
    "conda": """echo '{"conda_prefix": "/nowhere", "platform": "linux-64"}' """,
    # All nodes find the first one's address, but where the test says otherwise.
    "srun": """printf '%q ' srun "$@" >> "$NOTES"; echo >> "$NOTES"; [[ " $* " == *" getent "* && -z $UNKNOWN ]] """,
}


@pytest.fixture
def project(tmp_path):
    """The project with an environment of each kind, whose Pythons only note that they were started; its path has a space."""
    tmp_path /= "my project"
    tmp_path.mkdir()
    for name in ("src", "workflow", "resources", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    for name in ("Snakefile", "config.yaml", "artifacts.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/gpu.sif").touch()
    for folder, variables in (("image", "$PYTHONPATH"), (".conda", "${PYTHONPATH:-none} $PYTHONNOUSERSITE")):
        write_program(tmp_path / folder / "bin/python", PYTHON.format(name=folder, variables=variables))
    for name, script in STAND_INS.items():
        write_program(tmp_path / "bin" / name, script)
    (tmp_path / "notes").touch()
    return tmp_path


def start(project, profile, line, *arguments):
    file = project / "profiles" / profile / "profile.yaml"
    file.write_text(f"{file.read_text()}\n{line}\n")
    variables = {
        "NOTES": str(project / "notes"),
        "IMAGE_PATH": f"{project}/image/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
        "PYTHONPATH": f"{ROOT}/src:{ROOT}/workflow",
        PRETEND: "1",
    }
    command = [SNAKEMAKE, "--profile", f"profiles/{profile}", *arguments]
    result = run(*command, cwd=project, path=[project / "bin"], **variables)
    return (project / "notes").read_text().splitlines(), result.stdout + result.stderr


def test_jobs_use_the_image_and_the_code_of_the_checkout(project):
    notes, said = start(project, "smoke", "software-deployment-method: apptainer\napptainer-args: --nv", "--", HELDOUT)
    assert len(notes) == 2, said
    words = shlex.split(notes[0])
    assert words[:5] == ["apptainer", "exec", "--home", str(project), "--nv"]
    assert words[-3:] == ["envs/gpu.sif", "bash", "-c"]
    assert notes[1].startswith(f"image; {project}/src:{project}/workflow; -m pipeline.stages heldout --sources ")


def test_jobs_use_the_conda_environment_and_nothing_of_the_users_own(project):
    notes, said = start(project, "smoke", "software-deployment-method: conda", "--", HELDOUT)
    assert len(notes) == 1, said
    assert notes[0].startswith(".conda; none 1; -m pipeline.stages heldout --sources ")


@pytest.mark.parametrize(
    "said, starts",
    [
        ("echo error: no license", 2),
        ("echo error: stopped after step $number", 4),
        ("((number % 2)) && echo error: no license", 4),
    ],
)
def test_a_job_that_fails_twice_in_a_row_with_one_sentence_is_not_tried_again(project, said, starts):
    script = f'echo start >> "$NOTES"; number=$(wc -l < "$NOTES"); {said}; exit 1\n'
    write_program(project / ".conda/bin/python", script)
    notes, shown = start(project, "smoke", "software-deployment-method: conda", "--retries", "3", "--", HELDOUT)
    assert len(notes) == starts, shown


@pytest.mark.parametrize(
    "line, before",
    [("", ""), ("software-deployment-method: apptainer", "apptainer exec --home {} --nv envs/gpu.sif ")],
)
def test_srun_starts_the_image_on_each_of_several_nodes(project, line, before):
    notes, said = train_70b(project, line)
    assert len(notes) == 2, said
    escaped = str(project).replace(" ", "\\ ")
    program = f"--kill-on-bad-exit --cpus-per-task 96 {before.format(escaped)}bash -c "
    assert notes[1].startswith("srun --nodes 4 ") and program in notes[1], notes
    assert f" torchrun --nnodes 4 --nproc-per-node 8 --master-addr {socket.gethostname()} " in notes[1]


def test_a_training_whose_nodes_do_not_find_the_first_one_says_so_and_ends(project, monkeypatch):
    monkeypatch.setenv("UNKNOWN", "1")
    notes, said = train_70b(project)
    assert len(notes) == 1 and "torchrun" not in notes[0], notes
    assert f"finds no address of {socket.gethostname()}" in said


def train_70b(project, line=""):
    """A training on four nodes; what `start` returns."""
    for name in ("models/llama-3.1-70b/source.json", "packed/llama-3.1-70b/distillation.safetensors"):
        (project / "results" / name).parent.mkdir(parents=True)
        (project / "results" / name).touch()
    local = ["--executor", "local", "--cores", "1", "--retries", "0", "--rerun-triggers", "mtime"]
    local += ["--resources", "mem_mb=900000"]
    return start(project, "slurm", line, *local, "--", SEVENTY)


@pytest.mark.parametrize(
    "method, missing, sentence",
    [
        ("apptainer", "envs/gpu.sif", "make it with `make image`"),
        ("conda", ".conda/bin/python", "make it with `make setup-conda`"),
        ("[apptainer, conda]", None, "it may be apptainer or conda, or left out"),
    ],
)
def test_an_environment_that_is_not_there_is_one_sentence_before_any_job(project, method, missing, sentence):
    if missing:
        (project / missing).unlink()
    notes, said = start(project, "smoke", f"software-deployment-method: {method}", "--", HELDOUT)
    assert sentence in said and "Traceback" not in said
    assert notes == []


def job(command, **variables):
    clean = {name: os.environ[name] for name in ("PATH", "HOME")} | {"HF_HUB_OFFLINE": "0"}
    script = f'set -euo pipefail; . "{ROOT}/workflow/environment.sh"; {command}'
    run = subprocess.run(["bash", "-c", script], env=clean | variables, capture_output=True, text=True)
    return run.stdout, run.stderr


def test_a_job_is_offline_unless_it_says_otherwise():
    show = "bash -c 'echo \"$HF_HUB_OFFLINE $HF_HOME\"'"
    assert job(show)[0] == "1 \n"
    assert job(f"online {show}", XDG_CACHE_HOME="/c a")[0] == "0 /c a/huggingface\n"
    assert job(f"online {show}", HF_HUB_OFFLINE="1", HF_HOME="/h")[0] == "1 /h\n"


def test_text_of_jobs_is_utf8_in_any_locale(tmp_path):
    latin = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    assert job(f"{sys.executable} -c 'print(chr(0x2013))'", **latin) == ("\u2013\n", "")
    code = "from swiftkv.io import read_json, write_json; write_json('a', chr(0x2013)); print(ascii(read_json('a')))"
    done = run(sys.executable, "-c", code, cwd=tmp_path, **latin)
    assert done.stdout == "'\\u2013'\n", done.stderr


def test_a_job_started_by_a_rank_or_in_a_pod_is_no_rank():
    names = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE PET_NNODES"
    printed, said = job("env", **dict.fromkeys(names.split(), "1"), TORCH_LOGS="+dynamo")
    left = {line.partition("=")[0] for line in printed.splitlines()}
    assert not left & {*names.split()} and "TORCH_LOGS" in left and not said


def test_sockets_of_vllm_have_paths_that_the_kernel_takes(tmp_path):
    place = tmp_path / ("scratch-of-the-job" * 5)
    place.mkdir()
    code = (
        "import socket; from vllm.utils.network_utils import get_open_zmq_ipc_path as path; "
        "socket.socket(socket.AF_UNIX).bind(file := path().removeprefix('ipc://')); __import__('os').remove(file)"
    )
    _, said = job(f'{sys.executable} -c "{code}"', TMPDIR=str(place))
    assert "Error" not in said, said
    assert job("echo $VLLM_RPC_BASE_PATH", TMPDIR=str(place), VLLM_RPC_BASE_PATH="/own")[0] == "/own\n"
    assert job("echo ${VLLM_RPC_BASE_PATH-}", TMPDIR="/tmp")[0] == "\n"


def test_caches_of_a_job_with_gpus_are_its_own_and_go_with_it(tmp_path):
    show = 'echo "$XDG_CACHE_HOME $HF_HOME $VLLM_CACHE_ROOT $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"; ls -d "$XDG_CACHE_HOME"'
    places = {"LOCAL_CACHE": str(tmp_path), "HF_HOME": "/shared"}
    printed, said = job(f"{show}; online bash -c 'echo $HF_HOME'", CUDA_VISIBLE_DEVICES="0", **places)
    caches, folder, shared = printed.splitlines()
    assert all(cache.startswith(f"{tmp_path}/swiftkv-") for cache in caches.split()) and len(set(caches.split())) == 5
    assert folder == caches.split()[0] and shared == "/shared" and not said
    assert not list(tmp_path.iterdir())
    printed, said = job('echo "$HF_HOME"', CUDA_VISIBLE_DEVICES="0", LOCAL_CACHE="/no/such", HF_HOME="/shared")
    assert printed == "/shared\n" and "warning: gpu_jobs.local_cache" in said
