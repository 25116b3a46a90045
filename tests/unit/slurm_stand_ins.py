"""Jobs that ask SLURM for something, and stand-ins for its programs, which say what SLURM 22.05 says.

They are of a small cluster: partition h100 has four nodes of 8 H100s, 128 processors and 1000000 MB; partition cpu
has four nodes without GPUs, 128 processors and 100000 MB. Both allow 24 hours. The only account is swiftkv.
"""

from pathlib import Path
from types import SimpleNamespace

from tests.programs import ROOT, write_program

from pipeline.run.jobs import PlannedJob, Resources

PARTITIONS = ROOT / "profiles/slurm/partitions.yaml"
SETTINGS = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None, partition_config=PARTITIONS)
GPU_JOB = {
    "slurm_account": "swiftkv", "gpu": 8, "nodes": 1, "gpu_model": "h100", "cpus_per_gpu": 12,
    "mem_mb": 880000, "runtime": 1440,
}  # fmt: skip
CPU_JOB = {"slurm_account": "swiftkv", "mem_mb": 16000, "runtime": 240}
# A job that SLURM refuses, or that no node fits, and words of the sentence about it.
FAULTS = [
    (
        GPU_JOB | {"slurm_partition": "h200"},
        ["correct slurm_partition, now 'h200', under gpu_jobs in the profile's site"],
    ),
    (CPU_JOB | {"slurm_partition": "standard"}, ["correct slurm_partition, now 'standard', in the profile;"]),
    (GPU_JOB | {"gpu_model": "a100"}, ["correct gpu_model, the memory", "--gpus=a100:8"]),
    (GPU_JOB | {"mem_mb": 1100000}, ["the memory or the processors under gpu_jobs", "--mem 1100000"]),
    (GPU_JOB | {"constraint": "nvlink"}, ["correct constraint, now 'nvlink', under gpu_jobs"]),
    (GPU_JOB | {"runtime": 2880}, ["no partition in", "correct the time limit, the GPUs", "-t 2880"]),
    (GPU_JOB | {"slurm_partition": "h100", "runtime": 2880}, ["no partition in", "-t 2880"]),
    (CPU_JOB | {"runtime": 2880}, ["no partition in", "the memory in the profile;"]),
    (GPU_JOB | {"slurm_account": "nobody"}, ["correct slurm_account, now 'nobody', under gpu_jobs"]),
]

STAND_INS = {
    **{program.name: program.read_text() for program in Path(__file__).with_name("stand_ins").iterdir()},
    "squeue": 'cat "$QUEUE"',
    "sacctmgr": "echo swiftkv",
    "scancel": "",
}


def install(folder, **changes):
    """Write the stand-ins into a folder for PATH, some changed, or left out with None."""
    folder.mkdir(exist_ok=True)
    for name, script in (STAND_INS | changes).items():
        if script is not None:
            write_program(folder / name, script)
    return folder


def jobs(*asked):
    return [PlannedJob(rule, resources=Resources(resources)) for rule, resources in asked]
