"""A profile as far as the preflight reads it: where jobs run, and the configuration they run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from snakemake.utils import update_config

from swiftkv.errors import UserError

PROFILE_FILES = ("profile.yaml", "config.yaml")


@dataclass(frozen=True)
class Profile:
    """One folder of profiles/, or a copy of one.

    Attributes:
        folder: where it lies.
        settings: the content of its profile.yaml.
        config: config.yaml and artifacts.yaml of the project with the profile's own configuration over them.
    """

    folder: Path
    settings: dict[str, Any]
    config: dict[str, Any]

    @property
    def slurm(self) -> bool:
        """Whether jobs go to SLURM."""
        return self.settings.get("executor") == "slurm"

    @property
    def results(self) -> Path:
        """Where results go."""
        return Path(self.config["pathvars"]["results"])

    @property
    def attempts(self) -> int:
        """How often a job is tried; what it asks for may grow each time."""
        return 1 + int(self.settings.get("retries", 0))

    def limit(self, resource: str) -> int | None:
        """How much of a resource all jobs share; None where nothing limits them."""
        value = (self.settings.get("resources") or {}).get(resource)
        return None if value is None else int(value)


def read_profile(name: str, project: str | Path) -> Profile:
    """Read a profile.

    Args:
        name: a folder under profiles/ of the project, or a path.
        project: the folder of the Snakefile.

    Raises:
        UserError: there is no such profile, or one of its files cannot be read.
    """
    project = Path(project)
    folder = project / "profiles" / name
    if not folder.is_dir():
        folder = Path(name)
    file = next((folder / file for file in PROFILE_FILES if (folder / file).is_file()), None)
    if file is None:
        known = ", ".join(sorted(path.parent.name for path in project.glob("profiles/*/profile.yaml")))
        raise UserError(f"there is no profile {name!r}; PROFILE is one of {known}, or a folder with a profile.yaml")
    settings = _read(file)
    named = settings.get("configfile", [])
    config: dict[str, Any] = {}
    for path in [project / "config.yaml", project / "artifacts.yaml"]:
        update_config(config, _read(path))
    for path in [named] if isinstance(named, str) else named:
        update_config(config, _read(folder / path if (folder / path).exists() else Path(path)))
    return Profile(folder, settings, config)


def _read(file: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except OSError:
        raise UserError(f"{file} cannot be read") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
