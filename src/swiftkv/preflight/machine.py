"""Disk, memory, processors, GPUs and installed libraries of this machine."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from swiftkv.errors import UserError
from swiftkv.pricing.work import PlannedJob

GB = 10**9
# The first driver that runs programs of a CUDA release (NVIDIA's "minor version compatibility").
FIRST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
FP8_CAPABILITY = (8, 9)


class Gpu(NamedTuple):
    """What nvidia-smi says of a GPU."""

    name: str
    driver: str
    capability: tuple[int, ...]


def check_space(folder: Path, needed: int, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> str:
    """Whether the disk of a folder, which need not exist yet, has room.

    Args:
        needed: bytes.
        usage: total, used and free bytes of the disk that holds a folder.

    Raises:
        UserError: it has not.
    """
    free = usage(_existing(folder))[2]
    if free < needed:
        raise UserError(
            f"{folder} has {free / GB:.1f} GB free and at least {needed / GB:.1f} GB will be written there: free some space, "
            "or put it on another disk"
        )
    return f"{free / GB:.0f} GB free in {folder}, at least {needed / GB:.1f} GB to be written"


def disk(folder: Path) -> int:
    """Number of the disk that holds a folder, which need not exist yet."""
    return _existing(folder).stat().st_dev


def check_writable(folder: Path) -> str:
    """Whether files can be made in a folder, which need not exist yet.

    Raises:
        UserError: they cannot.
    """
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): correct its rights or choose another"
        ) from None
    return f"{folder} can be written to"


def check_memory(jobs: Iterable[PlannedJob], cores: int, memory: int) -> str:
    """Whether every job fits into the memory that all share, so that Snakemake lets the others wait.

    Args:
        jobs: all that are planned.
        cores: that Snakemake may use.
        memory: MB for all jobs that run at once.

    Returns:
        What there is, and how many of the largest jobs it lets run at once, if fewer than the cores do.

    Raises:
        UserError: a job takes more.
    """
    largest = max(jobs, key=lambda job: job.resources.get("mem_mb", 0), default=PlannedJob("none"))
    needed = largest.resources.get("mem_mb", 0)
    if needed > memory:
        raise UserError(
            f"a job of rule {largest.rule} takes {needed} MB of memory and there are {memory}: end other programs, or state "
            f"what may be used with --resources mem_mb={needed}"
        )
    room = f"{cores} cores and {memory / 1000:.1f} GB of memory"
    by_cores, by_memory = cores // min(largest.threads, cores), memory // max(needed, 1)
    if by_memory >= by_cores:
        return room
    return f"{room}, so at most {by_memory} of rule {largest.rule} at once ({needed / 1000:.1f} GB each)"


def check_cores(wanted: int, available: int) -> str:
    """Whether the machine has the processors that a profile counts on.

    Raises:
        UserError: it has fewer.
    """
    if wanted > available:
        raise UserError(
            f"the profile uses {wanted} cores and this machine has {available}: correct cores in the profile"
        )
    return f"{available} here, {wanted} used"


def gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists.

    Raises:
        UserError: there is no nvidia-smi, or no driver that it can talk to.
    """
    fields = "name,driver_version,compute_cap"
    try:
        run = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        raise UserError(
            "nvidia-smi is not here or does not answer: install NVIDIA's driver, or use another profile"
        ) from None
    if run.returncode:
        said = " ".join((run.stdout + run.stderr).split())[:200]
        raise UserError(f"nvidia-smi finds no GPU ({said}): mend the driver, or use another profile")
    rows = [[field.strip() for field in line.split(",")] for line in run.stdout.splitlines() if line.count(",") == 2]
    return [Gpu(name, driver, _numbers(capability)) for name, driver, capability in rows]


def check_gpus(found: Sequence[Gpu], wanted: int) -> str:
    """Whether there are as many GPUs as the profile shares out.

    Raises:
        UserError: there are fewer.
    """
    if len(found) < wanted:
        raise UserError(
            f"the profile shares out {wanted} GPUs and this machine has {len(found)}: correct gpu under resources in the profile"
        )
    return f"{len(found)} x {found[0].name}" if found else "none"


def check_driver(found: Sequence[Gpu], cuda: str) -> str:
    """Whether the driver is new enough for torch.

    Args:
        cuda: the CUDA release torch was built for.

    Raises:
        UserError: it is not.
    """
    driver, first = found[0].driver, FIRST_DRIVER.get(int(cuda.split(".")[0]))
    if first is None:
        return f"driver {driver}; which one CUDA {cuda} needs is not known here"
    if _numbers(driver) < first:
        raise UserError(
            f"NVIDIA's driver is {driver} and torch's CUDA {cuda} needs {'.'.join(map(str, first))} or newer: update the driver"
        )
    return f"{driver}, new enough for torch's CUDA {cuda}"


def check_fp8(found: Sequence[Gpu]) -> str:
    """Whether the GPUs compute in FP8.

    Raises:
        UserError: one does not.
    """
    for gpu in found:
        if gpu.capability < FP8_CAPABILITY:
            has, needs = (".".join(map(str, numbers)) for numbers in (gpu.capability, FP8_CAPABILITY))
            raise UserError(
                f"{gpu.name} has compute capability {has} and FP8 needs {needs}: leave out what is served in FP8 (models with "
                "quantization: fp8, variants with /fp8), or use another GPU"
            )
    return "compute capability " + ", ".join(sorted({".".join(map(str, gpu.capability)) for gpu in found}))


def lock_file(project: str | Path, version: Callable[[str], str] = importlib.metadata.version) -> Path:
    """The lock file of an environment, which its torch tells: envs/cpu.lock or envs/gpu.lock.

    Raises:
        UserError: there is no torch, or no such lock file.
    """
    try:
        torch = version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise UserError("torch is not installed; run `make setup`") from None
    file = Path(project) / "envs" / ("cpu.lock" if torch.endswith("+cpu") else "gpu.lock")
    if not file.is_file():
        raise UserError(f"torch {torch} is not of the environment this checkout describes: {file} does not exist")
    return file


def check_versions(lock: Path, version: Callable[[str], str] = importlib.metadata.version) -> str:
    """Whether everything a lock file names is installed in its version.

    Args:
        lock: lines of name==version; others are passed over.
        version: the installed version of a distribution.

    Raises:
        UserError: naming the first few that differ.
    """
    pins = dict(
        re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*([^\s;\\]+)", lock.read_text(), flags=re.MULTILINE)
    )
    different = []
    for name, wanted in pins.items():
        try:
            installed = version(name)
        except importlib.metadata.PackageNotFoundError:
            different.append(f"{name} is missing and should be {wanted}")
        else:
            if not SpecifierSet(f"=={wanted}").contains(installed, prereleases=True):
                different.append(f"{name} is {installed} and should be {wanted}")
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise UserError(
            f"{'; '.join(different[:5])}{more}, says {lock.parent.name}/{lock.name}: make the environment anew "
            "(docs/environment.md)"
        )
    return f"{len(pins)} distributions as in {lock.parent.name}/{lock.name}"


def _existing(folder: Path) -> Path:
    """The folder or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
