"""GPUs of jobs: limit a process to them, and raise an error instead of computing on the processor where they are missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError

# Set by tests alone, whose jobs ask for GPUs and compute on the processor.
PRETEND = "SWIFTKV_PRETEND_GPUS"
FOR_THE_PROCESSOR = "torch is a build for the processor: `make setup-gpu` (docs/environment.md)"
# Prints the CUDA release that torch was built for, without the seconds that importing torch takes.
CUDA = """
import importlib.util, runpy
print(runpy.run_path(importlib.util.find_spec("torch").origin.replace("__init__", "version"))["cuda"])
"""


def compute_with(threads: int | None, gpus: int | None) -> None:
    """Hold this process to what its job has; to be called before anything looks for a GPU.

    Args:
        threads: processor threads that torch uses; None leaves them as the environment says.
        gpus: how many GPUs of this node the process may see, the first ones; 0 hides all, None changes nothing.

    Raises:
        UserError: there are fewer GPUs than the job asked for, or parts of GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if gpus and "MIG-" in visible:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES on {socket.gethostname()} is {visible}, a part of a GPU (MIG), on which nothing here was "
            "tested: ask for whole GPUs, by gpu_model or constraint under gpu_jobs.resources of the site file"
        )
    if gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    if threads:
        torch.set_num_threads(threads)
    found = torch.cuda.device_count()
    if gpus and found < gpus and PRETEND not in os.environ:
        why = "`nvidia-smi` there and CUDA_VISIBLE_DEVICES say more" if torch.version.cuda else FOR_THE_PROCESSOR
        raise UserError(f"this job asks for {gpus} GPUs and sees {found} on {socket.gethostname()}; {why}")
    if gpus and found > gpus:
        names = visible or ",".join(map(str, range(found)))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names.split(",")[:gpus])


def gpus_of(resources: Mapping[str, Any]) -> int:
    """Return the GPUs of a job over all its nodes: its `gpu`, or those of its `gres` (gpu:TYPE:NUMBER) on each node."""
    if resources.get("gpu") or not str(resources.get("gres") or "").startswith("gpu"):
        return resources.get("gpu") or 0
    return int(resources["gres"].rpartition(":")[2]) * (resources.get("nodes") or 1)


def asked_for(jobs: Iterable[Any]) -> bool:
    """Return True if any job, of a plan or of Snakemake, asks for real GPUs."""
    return PRETEND not in os.environ and any(gpus_of(job.resources) for job in jobs)


def python_of_jobs(methods: Iterable[str], root: str | Path) -> list[str]:
    """Return the command that starts Python in jobs.

    Args:
        methods: the profile's software-deployment-method: none, conda or apptainer.
        root: folder of the project.
    """
    if "apptainer" in methods:
        return ["apptainer", "exec", f"{root}/envs/gpu.sif", "python"]
    return [f"{root}/.conda/bin/python" if "conda" in methods else sys.executable]


def cuda_of(python: Sequence[str]) -> str:
    """The CUDA release that the torch of a Python was built for.

    Raises:
        UserError: it was built for the processor, or cannot be asked.
    """
    try:
        run = subprocess.run([*python, "-c", CUDA], capture_output=True, encoding="utf-8")
    except OSError:
        raise UserError(f"{python[0]}, which jobs need, is not here (docs/environment.md)") from None
    if run.returncode:
        raise UserError(f"jobs ask for GPUs and {' '.join(python)} finds no torch: make it anew (docs/environment.md)")
    if run.stdout.strip() == "None":
        raise UserError(f"jobs ask for GPUs, and in {' '.join(python)} {FOR_THE_PROCESSOR}")
    return run.stdout.strip()
