"""Each thing that SLURM would refuse, or never start, is one sentence that names it, the rules and the remedy."""

import os

import pytest
from swiftkv.planning.profile import Profile
from swiftkv.preflight import slurm
from swiftkv.preflight.checks import problems_at_start
from swiftkv.preflight.nodes import read_nodes, unmet
from swiftkv.pricing.work import PlannedJob, Resources

from swiftkv.errors import UserError
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, WRONG_ACCOUNT, install, requests


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder whose bin/ is on PATH and has the stand-ins; the queue is empty."""
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    (tmp_path / "queue").touch()
    return tmp_path


def refused(*jobs):
    return slurm.verdict(requests(*jobs)).refused


def test_jobs_that_ask_for_the_same_are_one_request():
    found = requests(("score", GPU_JOB), ("fidelity", GPU_JOB), ("pack", CPU_JOB))
    assert [request.rules for request in found] == [["score", "fidelity"], ["pack"]]
    words = " ".join(found[0].words)
    assert "-A swiftkv -p h100 -t 1440 --mem 880000 --nodes=1 --requeue --cpus-per-gpu=12 --gpus=h100:8" in words


def test_what_slurm_takes_is_not_refused(cluster):
    assert slurm.verdict(requests(("distill", GPU_JOB), ("pack", CPU_JOB))) == ([], [])


@pytest.mark.parametrize(("job", "sentence"), [*FAULTS, WRONG_ACCOUNT])
def test_a_fault_is_named(cluster, job, sentence):
    (found,) = refused(("distill", job))
    assert found.startswith(sentence)


def test_a_fault_of_many_rules_is_one_sentence(cluster):
    wrong = GPU_JOB | {"slurm_partition": "h200"}
    (found,) = refused(("distill", wrong), ("score", wrong | {"gpu": 1, "mem_mb": 110000}), ("pack", CPU_JOB))
    assert "(of rule distill, score)" in found


def test_a_fault_of_a_later_attempt_says_so(cluster):
    wrong = GPU_JOB | {"gpu_model": "a100"}
    (found,) = refused(
        ("distill", wrong), ("distill at attempt 4", wrong | {"runtime": 60}), ("score at attempt 4", wrong)
    )
    assert "(of rule distill, score at attempt 4)" in found


def test_nodes_that_are_down_are_waited_for(cluster, monkeypatch):
    monkeypatch.setenv("DRAINED", "1")
    verdict = slurm.verdict(requests(("distill", GPU_JOB)))
    assert not verdict.refused and "may be down, drained or reserved" in verdict.waiting[0]


def test_no_single_node_has_it_all():
    nodes = read_nodes("1000000|16|infinite|4|gpu:h100:1|a\n100000|128|infinite|4|gpu:h100:8|b\nnoise\n")
    assert [node.gpus for node in nodes] == [{"h100": 1}, {"h100": 8}]
    ((wrong, _),) = unmet(Resources(GPU_JOB), nodes)
    assert wrong == "1 nodes are asked for with 8 GPUs, 880000 MB and 96 processors each, and partition 'h100' has 0"


def test_missing_programs_and_a_silent_controller_are_named(cluster, monkeypatch):
    assert slurm.controller()
    monkeypatch.setenv("CONTROLLER", "DOWN")
    with pytest.raises(UserError, match="SLURM's controller does not answer"):
        slurm.controller()
    monkeypatch.setenv("PATH", str(install(cluster / "fewer", sbatch=None, scontrol=None)))
    with pytest.raises(UserError, match="^sbatch, scontrol not found"):
        slurm.controller()


def test_an_account_that_the_plugin_would_refuse_is_named(cluster):
    assert slurm.accounts(requests(("pack", CPU_JOB))) == "swiftkv"
    with pytest.raises(UserError, match="account 'nobody' is not one of yours, which are swiftkv .*pack"):
        slurm.accounts(requests(("pack", CPU_JOB | {"slurm_account": "nobody"})))


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
    wrong = [GPU_JOB | {"slurm_partition": "h200"}, GPU_JOB | {"gpu_model": "a100"}, CPU_JOB]
    jobs = [PlannedJob("distill", resources=Resources(resources)) for resources in wrong]
    for cuda, problems in (("13.0", 2), ("None", 3)):
        python = ["bash", "-c", f"echo {cuda}"]
        profile = Profile(cluster, slurm=SETTINGS, directory=cluster, python=tuple(python))
        assert len(problems_at_start(profile, {}, jobs)) == problems
