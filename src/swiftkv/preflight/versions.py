"""The installed libraries against the lock file that the environment was made from."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path

from packaging.specifiers import SpecifierSet

from swiftkv.errors import UserError

SHOWN = 5


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
        more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        raise UserError(
            f"{'; '.join(different[:SHOWN])}{more}, says {lock.parent.name}/{lock.name}: make the environment anew "
            "(docs/environment.md)"
        )
    return f"{len(pins)} distributions as in {lock.parent.name}/{lock.name}"
