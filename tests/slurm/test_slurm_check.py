"""A real SLURM judges requests as the stand-ins of the unit tests do; it keeps no accounts."""

import pytest
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, requests

from pipeline.run.check import slurm

pytestmark = pytest.mark.slurm


def test_what_slurm_takes_is_not_refused(cluster):
    assert slurm.controller()
    assert slurm.verdict(requests(("distill", GPU_JOB), ("pack", CPU_JOB))) == ([], [])


@pytest.mark.parametrize(("job", "words"), [fault for fault in FAULTS if "slurm_account" not in fault[1][0]])
def test_a_fault_is_named(cluster, job, words):
    verdict = slurm.verdict(requests(("distill", job)))
    (found,) = [*verdict.refused, *verdict.waiting]
    assert all(word in found for word in words), found
