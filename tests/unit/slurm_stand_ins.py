"""Jobs that ask SLURM for something, and stand-ins for its programs, which say what SLURM 22.05 says.

They are of a small cluster: partition h100 has two nodes of 8 H100s, 128 processors and 1000000 MB; partition cpu
has four nodes without GPUs and 100000 MB. Both allow 24 hours. The only account is swiftkv.
"""

from types import SimpleNamespace

from tests.programs import write_program

from pipeline.run.jobs import PlannedJob, Resources

SETTINGS = SimpleNamespace(requeue=True, no_requeue=False, qos=None, reservation=None)
GPU_JOB = {
    "slurm_account": "swiftkv", "slurm_partition": "h100", "gpu": 8, "nodes": 1, "gpu_model": "h100", "cpus_per_gpu": 12,
    "mem_mb": 880000, "runtime": 1440,
}  # fmt: skip
CPU_JOB = {"slurm_account": "swiftkv", "slurm_partition": "cpu", "mem_mb": 16000, "runtime": 240}
# A job that SLURM refuses, or that no node fits, and words of the sentence about it.
FAULTS = [
    (
        GPU_JOB | {"slurm_partition": "h200"},
        ["correct slurm_partition, now 'h200', under gpu_jobs in the profile's site"],
    ),
    (CPU_JOB | {"slurm_partition": "standard"}, ["correct slurm_partition, now 'standard', in the profile;"]),
    (GPU_JOB | {"gpu_model": "a100"}, ["correct slurm_partition, gpu_model, the memory", "--gpus=a100:8"]),
    (GPU_JOB | {"mem_mb": 1100000}, ["the memory or the processors under gpu_jobs", "--mem 1100000"]),
    (GPU_JOB | {"constraint": "nvlink"}, ["correct constraint, now 'nvlink', under gpu_jobs"]),
    (GPU_JOB | {"runtime": 2880}, ["correct longest_runtime under gpu_jobs", "-t 2880"]),
    (GPU_JOB | {"slurm_account": "nobody"}, ["correct slurm_account, now 'nobody', under gpu_jobs"]),
]

SAYS = 'fail() { echo "allocation failure: $1" >&2; exit 1; }\n'
SBATCH = r"""
line=" $* "
[[ $line == *" --test-only "* ]] || { echo "$line" >> "$SUBMITTED"; echo 1; exit; }
[[ $line == *" -A "* && $line != *" -A swiftkv "* ]] && fail "Invalid account or account/partition combination specified"
[[ $line =~ " -p "(h100|cpu)" " ]] || fail "Invalid partition name specified"
unavailable="Requested node configuration is not available"
[[ $line =~ --gpus=([a-z0-9]+): && ${BASH_REMATCH[1]} != h100 ]] && fail "$unavailable"
[[ $line =~ --mem\ ([0-9]+) && ${BASH_REMATCH[1]} -gt 1000000 ]] && fail "$unavailable"
[[ -n ${ENFORCED:-} && $line =~ " -t "([0-9]+) && ${BASH_REMATCH[1]} -gt 1440 ]] && fail "Requested time limit is invalid"
[[ $line == *" -C "* ]] && fail "Invalid feature specification"
[[ -n ${DRAINED:-} ]] && fail "$unavailable"
echo "sbatch: Job 1 to start at 2026-01-01T00:00:00 using 1 processors on nodes n0 in partition h100" >&2
"""
SCONTROL = r"""
case "$*" in
    ping) echo "Slurmctld(primary) at pretend is ${CONTROLLER:-UP}" ;;
    "show partition") printf 'PartitionName=%s\n   MaxTime=1-00:00:00 MinNodes=0\n\n' h100 cpu ;;
    *) echo "MinJobAge = 3600 sec" ;;
esac
"""
STAND_INS = {
    "sbatch": SAYS + SBATCH,
    "squeue": 'cat "$QUEUE"',
    "scontrol": SCONTROL,
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
