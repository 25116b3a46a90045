"""What this machine or SLURM lacks for a run is named before anything runs."""

import os

import pytest
from tests.programs import write_program
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, install, jobs

from pipeline.run import slurm
from pipeline.run.check import (
    Report,
    check_disk,
    check_environment,
    check_gpus,
    check_memory,
    problems_at_start,
)
from pipeline.run.jobs import PlannedJob, Profile, Resources
from swiftkv.cost import GIGA
from swiftkv.errors import UserError


def job(mem_mb, threads=1, rule="distill"):
    return PlannedJob(rule, threads=threads, resources=Resources(mem_mb=mem_mb))


def test_a_full_disk(tmp_path, monkeypatch):
    folder = tmp_path / "results" / "local"
    assert check_disk(folder, 10**8, 0).startswith("room for 0.1 GB of results")
    for written, missing in ((10**9 * GIGA, 0), (0, 10**9 * GIGA)):
        with pytest.raises(UserError, match="GB free and at least 1000000000.0 GB"):
            check_disk(folder, written, missing)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    with pytest.raises(UserError, match="results/local cannot be written to"):
        check_disk(folder, 0, 0)


def test_too_little_memory():
    planned = [job(5000), job(5000), job(8000, threads=4, rule="measure"), PlannedJob("all")]
    room = "2 cores and 16.0 GB of memory"  # the cores alone let one measure at a time
    assert check_memory(planned, 2, 16000) == room
    assert check_memory(planned, 8, 15000).endswith("so at most 1 of rule measure at once (8.0 GB each)")
    assert "at most 3 of rule distill at once" in check_memory([job(5000)], 8, 16000)
    assert "at once" not in check_memory([PlannedJob("all")], 8, 16000)
    with pytest.raises(UserError, match="a job of rule measure takes 8000 MB of memory and there are 6000"):
        check_memory(planned, 2, 6000)


def test_too_few_gpus(tmp_path, monkeypatch):
    write_program(tmp_path / "nvidia-smi", 'echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert check_gpus(1) == "1 here, 1 shared out"
    with pytest.raises(UserError, match="shares out 8 GPUs and this machine has 1"):
        check_gpus(8)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="nvidia-smi is not here"):
        check_gpus(1)


# SLURM


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder whose bin/ is on PATH and has the stand-ins; the queue is empty."""
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    (tmp_path / "queue").touch()
    return tmp_path


def test_jobs_that_ask_for_the_same_are_one_request(cluster):
    same = jobs(("score", GPU_JOB), ("fidelity", GPU_JOB), ("pack", CPU_JOB))
    found = slurm.requests(same, SETTINGS)
    assert [[job.rule for job in alike] for alike in found.values()] == [["score", "fidelity"], ["pack"]]
    words = " ".join(next(iter(found)))
    assert "-A swiftkv -p h100 -t 1440 --mem 880000 --nodes=1 --requeue --cpus-per-gpu=12 --gpus=h100:8" in words
    assert slurm.verdict(same, SETTINGS) == ([], [])


@pytest.mark.parametrize(("resources", "words"), FAULTS)
def test_a_fault_is_named_with_the_key_to_correct(cluster, resources, words):
    refused, waiting = slurm.verdict(jobs(("distill", resources)), SETTINGS)
    (sentence,) = refused + waiting
    assert sentence.startswith("of rule distill SLURM says ")
    assert all(word in sentence for word in words), sentence


def test_a_wrong_value_is_one_sentence_whatever_else_its_jobs_ask_for(cluster):
    wrong, other = GPU_JOB | {"slurm_partition": "h200"}, CPU_JOB | {"slurm_partition": "standard"}
    found = jobs(("distill", wrong), ("score", wrong | {"gpu": 1, "runtime": 480}), ("pack", CPU_JOB), ("pack", other))
    (first, second), _ = slurm.verdict(found, SETTINGS)
    assert first.startswith("of rule distill, score SLURM says") and "'standard'" in second


def test_nodes_that_are_down_stop_no_run(cluster, monkeypatch, capsys):
    monkeypatch.setenv("DRAINED", "1")
    profile = Profile(cluster, slurm=SETTINGS, directory=cluster)
    assert problems_at_start(profile, jobs(("pack", CPU_JOB))) == []
    assert "Requested node configuration is not available" in capsys.readouterr().err
    assert len(check_environment(Report(), profile, jobs(("pack", CPU_JOB)))) == 1


def test_missing_programs_are_named(cluster, monkeypatch):
    assert slurm.programs()
    monkeypatch.setenv("PATH", str(install(cluster / "fewer", sbatch=None, scontrol=None)))
    with pytest.raises(UserError, match="^sbatch, scontrol not found"):
        slurm.programs()


def test_jobs_of_an_earlier_controller_are_named(cluster):
    here, elsewhere = cluster / "here", cluster / "elsewhere"
    lines = [
        f"11|{here}|rule_distill_wildcards_llama_swiftkv-50",
        f"12|{elsewhere}|rule_distill_wildcards_x",
        f"13|{here}|(null)",
        f"14|{here}|rule_heldout",
    ]
    (cluster / "queue").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"11 \(distill\), 14 \(heldout\).*scancel 11 14"):
        slurm.earlier_jobs(here)
    assert slurm.earlier_jobs(cluster)


def test_all_problems_at_the_start_are_said(cluster):
    wrong = [GPU_JOB | {"slurm_partition": "h200"}, GPU_JOB | {"constraint": "nvlink"}, CPU_JOB]
    planned = jobs(*(("distill", resources) for resources in wrong))
    for cuda, problems in (("13.0", 2), ("None", 3)):
        profile = Profile(cluster, slurm=SETTINGS, directory=cluster, python=("bash", "-c", f"echo {cuda}"))
        assert len(problems_at_start(profile, planned)) == problems
