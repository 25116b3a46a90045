"""`make probe` on a real SLURM: a line for each check of each node, and one for each planted fault."""

import os
import re
import subprocess
import sys

import pytest
from tests.programs import write_program
from tests.slurm.cluster import NODES, run

pytestmark = pytest.mark.slurm
TARGET = "results/smoke/training/tiny-random/swiftkv-50.json"
SUBJECTS = {"gpus", "libraries", "compiler", "modules", "TMPDIR", "read", "results", "HF_HOME", "names"}


@pytest.fixture
def probed(cluster, workflow):
    """A function that probes for a training of two nodes, with changes of the environment; its lines and exit status."""
    for key in ("gpus", "nodes"):
        workflow.override["models"]["tiny-random"][key]["distill"] = 2
    workflow.profile["retries"] = 2
    workflow.write()

    def probe(**changes):
        words = ["-m", "pipeline", "probe", "--profile", str(workflow.folder), TARGET]
        environment = workflow.environment() | {"HF_HOME": str(workflow.folder / "hub")} | changes
        done = subprocess.run(
            [sys.executable, *words], cwd=workflow.folder, env=environment, capture_output=True, text=True
        )
        print(done.stdout, done.stderr)
        lines = re.findall(r"^(ok|FAIL) +([\w-]+)(?: \((\w+)\))?: (.+)", done.stdout, re.MULTILINE)
        return lines, done.returncode

    return probe


def customized(folder, code):
    """Let every Python of a job run some code as it starts, as a module's PYTHONPATH may."""
    (folder / "modules").mkdir()
    (folder / "modules/sitecustomize.py").write_text(code)
    return {"PYTHONPATH": f"{folder / 'modules'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def failed(lines):
    return {subject for verdict, subject, _, _ in lines if verdict == "FAIL"}


def test_all_is_right(cluster, probed, workflow):
    lines, status = probed()
    assert status == 0 and not failed(lines)
    for node in NODES:
        assert {subject for _, subject, where, _ in lines if where == node} == SUBJECTS
    assert [text for _, subject, _, text in lines if subject == "all-reduce" and "2 ranks" in text]
    job = cluster.job(cluster.jobs()[-1]["id"])
    assert job["NumNodes"] == "2" and job["Partition"] == "h100" and job["TimeLimit"] <= "00:05:00"
    assert cluster.jobs()[-1]["gpus"] == "gres:gpu:h100:2"
    assert not list(workflow.folder.rglob(".probe"))


def test_no_headers_another_cuda_and_a_full_folder_for_temporary_files(probed, tmp_path):
    compiler = write_program(
        tmp_path / "cc", 'for word; do [[ $word == -I* ]] || words+=("$word"); done; exec gcc "${words[@]}"'
    )
    for name in ("cuda", "small"):
        (tmp_path / name).mkdir()
    (tmp_path / "cuda/libcudart.so.12").touch()
    run("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path / "small"))
    try:
        lines, status = probed(CC=str(compiler), LD_LIBRARY_PATH=str(tmp_path / "cuda"), TMPDIR=str(tmp_path / "small"))
    finally:
        run("umount", "--lazy", str(tmp_path / "small"))
    assert status != 0 and failed(lines) == {"compiler", "modules", "TMPDIR"}
    assert any("Python.h" in text for _, subject, _, text in lines if subject == "compiler")


def test_a_name_that_does_not_resolve_and_a_rank_that_hangs(probed, tmp_path):
    code = f"""
import os, pathlib, socket, sys, time
if sys.orig_argv[1:3] == ["-m", "pipeline.run.probe_rank"] and os.environ.get("SLURM_NODEID") == "1":
    socket.gethostname = lambda: "nowhere.invalid"
if os.environ.get("RANK") == "1":
    pathlib.Path({str(tmp_path / "hangs")!r}).touch()
    time.sleep(3600)
"""
    lines, status = probed(**customized(tmp_path, code))
    assert status != 0 and failed(lines) == {"names", "all-reduce", "modules"} and (tmp_path / "hangs").exists()
    assert {where for _, subject, where, text in lines if subject == "names" and "nowhere.invalid" in text} == {*NODES}


def test_a_node_that_hangs(probed, tmp_path):
    code = "import os, time\nif os.environ.get('SLURM_NODEID') == '1': time.sleep(3600)"
    lines, status = probed(**customized(tmp_path, code))
    assert status != 0 and failed(lines) == {"nodes", "results", "HF_HOME", "all-reduce", "modules"}
    assert {where for _, _, where, _ in lines} == {NODES[0], ""}
