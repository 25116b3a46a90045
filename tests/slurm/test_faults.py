"""What goes wrong on a cluster, done to a real one: every training ends in the very bits of an undisturbed one."""

import contextlib
import csv
import datetime
import os
import re
import shutil
import socket
import time
from pathlib import Path

import psutil
import pytest
import yaml
from tests.programs import ROOT, read_yaml
from tests.slurm.cluster import run
from tests.slurm.conftest import Workflow

from swiftkv.io import read_json

pytestmark = pytest.mark.slurm
STEPS = 40
RECORD = "results/smoke/training/tiny-random/swiftkv-50.json"
STATE = "results/smoke/training-state/tiny-random/swiftkv-50"


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A finished training of two ranks, without a cluster."""
    workflow = fitted(tmp_path_factory.mktemp("undisturbed"))
    # The profile's nodes have more memory than this machine.
    done = workflow.run(RECORD, "--executor", "local", "--cores", "2", "--resources", "mem_mb=1000000")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return workflow


def fitted(folder):
    workflow = Workflow(folder)
    workflow.override["recipes"]["distillation"] |= {"max_steps": STEPS, "checkpoint_every": 4}
    workflow.override["models"]["tiny-random"]["gpus"]["distill"] = 2
    workflow.profile["retries"] = 2
    return workflow


@pytest.fixture
def disturbed(undisturbed, tmp_path):
    """The same training, not begun; what it needs is there."""
    results = tmp_path / "results"
    shutil.copytree(undisturbed.folder / "results", results, symlinks=True)
    for name in ("checkpoints", "training", "training-state"):
        shutil.rmtree(results / "smoke" / name)
    return fitted(tmp_path)


def begin(workflow):
    """Start it and wait for its first state; the controller, and the step of that state."""
    controller, deadline = workflow.start(RECORD), time.monotonic() + 120
    while not (files := list((workflow.folder / STATE).glob("*/state.json"))):
        assert controller.poll() is None and time.monotonic() < deadline, "the training does not begin"
        time.sleep(0.05)
    return controller, read_json(files[0])["checkpoints"][0]["step"]


def ranks(workflow):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if {"pipeline.stages", "distill"} <= set(words) and not any("torchrun" in word for word in words):
            with contextlib.suppress(psutil.Error):
                found += [process] if Path(process.cwd()) == workflow.folder else []
    return found


def jobs_of(cluster, workflow):
    return [job for job in cluster.jobs() if cluster.job(job["id"]).get("WorkDir") == str(workflow.folder)]


def same_result(workflow, undisturbed):
    """The same losses, every step once, and the same weights, bit for bit."""
    found = []
    for folder in (workflow.folder / "results/smoke", undisturbed.folder / "results/smoke"):
        with (folder / "training/tiny-random/swiftkv-50.csv").open(newline="") as file:
            found.append([(row["step"], row["loss"], row["tokens"]) for row in csv.DictReader(file)])
        found.append((folder / "checkpoints/tiny-random/swiftkv-50/swiftkv.safetensors").read_bytes())
    return found[:2] == found[2:] and len(found[0]) == STEPS


def resumed(workflow):
    log = (workflow.folder / "results/smoke/logs/distill/tiny-random/swiftkv-50.log").read_text()
    return int(re.search(r"continuing after step (\d+)", log)[1])


def test_a_rank_is_killed_as_for_memory(cluster, undisturbed, disturbed):
    controller, step = begin(disturbed)
    ranks(disturbed)[-1].kill()
    assert controller.wait(300) == 0
    assert same_result(disturbed, undisturbed)
    assert resumed(disturbed) >= step
    first, second = jobs_of(cluster, disturbed)
    assert (first["state"], second["state"]) == ("FAILED", "COMPLETED")
    # The next attempt may use more memory.
    memory = [int(re.match(r"\d+", cluster.job(job["id"])["MinMemoryNode"])[0]) for job in (first, second)]
    assert memory[1] > memory[0]


def test_the_job_is_requeued(cluster, undisturbed, disturbed):
    controller, step = begin(disturbed)
    (job,) = jobs_of(cluster, disturbed)
    run("scontrol", "requeue", job["id"])
    cluster.wait(lambda: cluster.job(job["id"])["JobState"] == "PENDING", "the job is not requeued")
    run("scontrol", "update", f"JobId={job['id']}", "StartTime=now")  # SLURM lets it wait two minutes
    assert controller.wait(300) == 0
    assert same_result(disturbed, undisturbed)
    assert resumed(disturbed) >= step
    assert [job["state"] for job in jobs_of(cluster, disturbed)] == ["COMPLETED"]  # the same job, begun again


def test_a_job_that_is_cancelled_for_another_comes_back(cluster, undisturbed, disturbed):
    disturbed.profile["set-resources"]["distill"] = {"slurm_partition": "spare"}
    controller, step = begin(disturbed)
    (job,) = jobs_of(cluster, disturbed)
    other = run("sbatch", "--parsable", "--account=swiftkv", "--partition=h100", "--nodes=2", "--exclusive", "--output=/dev/null",
                "--wrap=sleep 600").strip()  # fmt: skip
    cluster.wait(lambda: cluster.job(job["id"])["JobState"] == "PREEMPTED", "the job is not preempted")
    cluster.wait(lambda: cluster.job(job["id"])["JobState"] == "PENDING", "the job does not come back", 120)
    run("scancel", other)
    run("scontrol", "update", f"JobId={job['id']}", "StartTime=now")  # SLURM lets it wait two minutes
    assert controller.wait(600) == 0
    assert same_result(disturbed, undisturbed)
    assert resumed(disturbed) >= step
    assert [job["state"] for job in jobs_of(cluster, disturbed)] == ["COMPLETED"]


def test_the_time_limit_comes(cluster, undisturbed, disturbed):
    """The first job may take four minutes; it saves its state before they are over, and the next one goes on."""
    disturbed.profile["set-resources"]["distill"] = {"runtime": "4 if attempt == 1 else 30"}
    controller, _ = begin(disturbed)
    processes = ranks(disturbed)
    for process in processes:
        process.suspend()
    (job,) = jobs_of(cluster, disturbed)
    end = datetime.datetime.fromisoformat(cluster.job(job["id"])["EndTime"])
    # A fifth of what was left when the training began is kept for saving.
    time.sleep(max(0, end.timestamp() - 30 - time.time()))
    for process in processes:
        process.resume()
    assert controller.wait(300) == 0
    assert same_result(disturbed, undisturbed)
    assert [job["state"] for job in jobs_of(cluster, disturbed)] == ["FAILED", "COMPLETED"]
    said = "".join(log.read_text() for log in (disturbed.folder / "slurm-logs").rglob("*.log"))
    stopped = re.search(r"stopped before the time of its job ends, its state saved after step (\d+)", said)
    assert resumed(disturbed) >= int(stopped[1])


def test_a_second_controller_comes_and_the_first_is_killed(cluster, undisturbed, disturbed):
    """The second is refused; the job goes on without the first; the third begins nothing twice and ends what is left."""
    controller, _ = begin(disturbed)
    for process in (processes := ranks(disturbed)):  # so that the job is still there when it is asked after
        process.suspend()
    second = disturbed.run(RECORD)
    assert second.returncode != 0 and "--unlock" in second.stdout + second.stderr
    assert controller.poll() is None
    controller.kill()
    controller.wait()
    (job,) = jobs_of(cluster, disturbed)
    assert disturbed.run("--unlock").returncode == 0
    refused = disturbed.run(RECORD)
    assert refused.returncode != 0 and f"scancel {job['id']}" in refused.stdout + refused.stderr
    assert len(jobs_of(cluster, disturbed)) == 1
    for process in processes:
        process.resume()
    cluster.wait(lambda: jobs_of(cluster, disturbed)[0]["state"] == "COMPLETED", "the job does not end", 200)
    before = (disturbed.folder / RECORD).stat().st_mtime_ns
    assert disturbed.run(RECORD).returncode == 0
    assert (disturbed.folder / RECORD).stat().st_mtime_ns == before and len(jobs_of(cluster, disturbed)) == 1
    assert same_result(disturbed, undisturbed)


def test_slurmctld_is_gone_for_a_minute(cluster, undisturbed, disturbed):
    controller, _ = begin(disturbed)
    cluster.kill_controller()
    time.sleep(60)
    cluster.start_controller()
    assert controller.wait(400) == 0
    assert len(jobs_of(cluster, disturbed)) == 1 and same_result(disturbed, undisturbed)


@pytest.mark.parametrize("gres", [None, "gpu:h100"])
def test_ranks_on_two_nodes_meet_though_a_port_is_taken_and_full_names_are_unknown(
    cluster, undisturbed, disturbed, monkeypatch, gres
):
    if gres:
        site = read_yaml(ROOT / "profiles/slurm/site.yaml")
        del site["gpu_jobs"]["resources"]["gpu_model"]
        site["gpu_jobs"]["gres"] = gres
        (disturbed.folder / "site.yaml").write_text(yaml.safe_dump(site))
        disturbed.profile["configfile"][0] = str(disturbed.folder / "site.yaml")
    (disturbed.folder / "sitecustomize.py").write_text("import socket\nsocket.getfqdn = lambda *_: 'nowhere.invalid'\n")
    monkeypatch.setenv("PYTHONPATH", str(disturbed.folder), prepend=os.pathsep)
    disturbed.override["models"]["tiny-random"]["nodes"]["distill"] = 2
    with socket.socket() as taken:
        taken.bind(("", 29500))  # torchrun's own choice
        taken.listen()
        done = disturbed.run(RECORD)
    assert done.returncode == 0, done.stderr[-3000:]
    (job,) = jobs_of(cluster, disturbed)
    asked = cluster.job(job["id"])
    assert asked["NumNodes"] == "2"
    if gres:  # on each node
        assert asked["TresPerNode"] == "gres:gpu:h100:1"
    else:
        assert job["gpus"] == "gres:gpu:h100:2"
    assert same_result(disturbed, undisturbed)
