"""Stand-ins for SLURM's programs that judge and say what SLURM 22.05 does, of a small cluster.

Partition h100 has two nodes of 8 H100s, 128 processors and 1000000 MB; partition cpu has four nodes without GPUs and
100000 MB. Both allow 24 hours. The only account is swiftkv.
"""

SAYS = 'fail() { echo "allocation failure: $1" >&2; exit 1; }\n'
SBATCH = r"""
line=" $* "
[[ $line == *" --test-only "* ]] || { echo "$line" >> "$SUBMITTED"; echo 1; exit; }
[[ $line == *" -A "* && $line != *" -A swiftkv "* ]] && fail "Invalid account or account/partition combination specified"
[[ $line =~ " -p "(h100|cpu)" " ]] || fail "Invalid partition name specified"
unavailable="Requested node configuration is not available"
[[ $line =~ --gpus=([a-z0-9]+): && ${BASH_REMATCH[1]} != h100 ]] && fail "$unavailable"
[[ $line =~ --mem\ ([0-9]+) && ${BASH_REMATCH[1]} -gt 1000000 ]] && fail "$unavailable"
[[ $line == *" -C "* ]] && fail "Invalid feature specification"
[[ -n ${DRAINED:-} ]] && fail "$unavailable"
echo "sbatch: Job 1 to start at 2026-01-01T00:00:00 using 1 processors on nodes n0 in partition h100" >&2
"""
SINFO = r"""
case "$*" in
    *%R*) printf "h100\ncpu\n" ;;
    *"partition h100"*) echo "1000000|128|1-00:00:00|2|gpu:h100:8(S:0-1)|(null)" ;;
    *"partition cpu"*) echo "100000|64|1-00:00:00|4|(null)|(null)" ;;
esac
"""
STAND_INS = {
    "sbatch": SAYS + SBATCH,
    "sinfo": SINFO,
    "squeue": 'cat "$QUEUE"',
    "scontrol": '[[ $1 == ping ]] && echo "Slurmctld(primary) at pretend is ${CONTROLLER:-UP}" || echo "MinJobAge = 3600 sec"',
    "sacctmgr": "echo swiftkv",
    "scancel": "",
}


def install(folder, **changes):
    """Write the stand-ins into a folder for PATH, some changed, or left out with None."""
    folder.mkdir(exist_ok=True)
    for name, script in (STAND_INS | changes).items():
        if script is not None:
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)
    return folder
