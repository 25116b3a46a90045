"""A real SLURM, without EnforcePartLimits, judges requests as the stand-ins of the unit tests do."""

import pytest
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, jobs

from pipeline.run import slurm

pytestmark = pytest.mark.slurm


def test_what_slurm_takes_is_not_refused(cluster):
    assert slurm.controller()
    assert slurm.verdict(jobs(("distill", GPU_JOB), ("pack", CPU_JOB)), SETTINGS) == ([], [])


@pytest.mark.parametrize("job, words", FAULTS)
def test_a_fault_is_named(cluster, job, words):
    refused, waiting = slurm.verdict(jobs(("distill", job)), SETTINGS)
    (found,) = refused + waiting
    assert all(word in found for word in words), found
