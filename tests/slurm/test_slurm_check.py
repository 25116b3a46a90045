"""A real SLURM judges requests as the stand-ins of the unit tests do; it keeps no accounts."""

import pytest
from tests.slurm.cluster import run
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, jobs

from pipeline.run import slurm
from swiftkv.errors import UserError

pytestmark = pytest.mark.slurm


def test_what_slurm_takes_is_not_refused(cluster):
    assert slurm.controller()
    assert slurm.verdict(jobs(("distill", GPU_JOB), ("pack", CPU_JOB)), SETTINGS) == ([], [])


@pytest.mark.parametrize(("job", "words"), [fault for fault in FAULTS if "slurm_account" not in fault[1][0]])
def test_a_fault_is_named(cluster, job, words):
    refused, waiting = slurm.verdict(jobs(("distill", job)), SETTINGS)
    (found,) = refused + waiting
    assert all(word in found for word in words), found


def test_nodes_that_are_down_are_waited_for(cluster):
    nodes = f"nodename={','.join(cluster.nodes)}"
    run("scontrol", "update", nodes, "state=drain", "reason=test")
    try:
        refused, waiting = slurm.verdict(jobs(("distill", GPU_JOB)), SETTINGS)
    finally:
        run("scontrol", "update", nodes, "state=resume")
    assert not refused and len(waiting) == 1


def test_a_job_of_an_earlier_controller_is_named(cluster, tmp_path):
    assert slurm.earlier_jobs(tmp_path)
    comment = "rule_distill_wildcards_llama-3.1-8b_swiftkv-50"
    number = run(
        "sbatch", "--parsable", "-D", str(tmp_path), "-o", "/dev/null", "--comment", comment, "--wrap", "sleep 600"
    ).strip()
    try:
        with pytest.raises(UserError, match=rf": {number} \(distill\); .*`scancel {number}`"):
            slurm.earlier_jobs(tmp_path)
    finally:
        run("scancel", number)
