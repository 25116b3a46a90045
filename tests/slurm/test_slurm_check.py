"""A real SLURM judges requests as the stand-ins of the unit tests do, but for a time limit.

Without EnforcePartLimits it takes a job that asks for more than its partition's MaxTime; the job waits for ever.
"""

import pytest
from tests.unit.slurm_stand_ins import CPU_JOB, FAULTS, GPU_JOB, SETTINGS, jobs

from pipeline.run import slurm

pytestmark = pytest.mark.slurm


def test_what_slurm_takes_is_not_refused(cluster):
    assert slurm.controller()
    assert slurm.verdict(jobs(("distill", GPU_JOB), ("pack", CPU_JOB)), SETTINGS) == ([], [])


@pytest.mark.parametrize(("job", "words"), [fault for fault in FAULTS if "longest_runtime" not in fault[1][0]])
def test_a_fault_is_named(cluster, job, words):
    refused, waiting = slurm.verdict(jobs(("distill", job)), SETTINGS)
    (found,) = refused + waiting
    assert all(word in found for word in words), found
