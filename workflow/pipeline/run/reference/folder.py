"""The folder of a scale's reference run, and keeping a finished run's records there."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

from pipeline.artifacts import contents
from pipeline.artifacts.text import some
from pipeline.config import Config
from pipeline.stages import STAGES
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json

FOLDER = "resources/reference"
CLAIMS = "tables/claims.csv"  # the verdicts of the run, kept beside its records
# What stages write as JSON, but for the shards of scores, and resolved models, which are no measurements.
_WRITTEN = {
    name: re.sub(r"{\w+}", "*", stage.output) for name, stage in STAGES.items() if stage.output.endswith(".json")
}
_RECORDS = sorted({pattern for name, pattern in _WRITTEN.items() if name not in ("score_shard", "resolve_model")})


def folder(root: Path, config: Config) -> Path:
    """Where the reference run of a scale lies, by the name of its folder of results; it need not be there."""
    return root / FOLDER / Path(config.pathvars.results).name


def records(place: Path) -> list[str]:
    """The measurement records of a reference run, or of any folder of results, as paths from there.

    Raises:
        UserError: there are none.
    """
    found = sorted(str(file.relative_to(place)) for pattern in _RECORDS for file in place.glob(pattern))
    if not found:
        raise UserError(
            f"no reference run is shipped for this scale ({place} has no records); `make reference` keeps those of a "
            "finished run there"
        )
    return found


def verdicts(place: Path) -> dict[str, dict[str, str]]:
    """The line of claims.csv on every claim, by the claim's id; empty where the claims of a folder of results are not judged."""
    file = place / CLAIMS
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {line["id"]: line for line in csv.DictReader(lines)}


def keep(config: Config, place: Path) -> str:
    """Replace a scale's reference run by the records of its results, which have to be all there; says what was kept.

    Args:
        config: of the scale.
        place: `folder` of the scale.

    Raises:
        UserError: a record is missing, or names a folder of this machine.
    """
    results = Path(config.pathvars.results)
    wanted = [CLAIMS, *dict.fromkeys(file for name in contents.names(config) for file in measured(config, name))]
    if absent := [name for name in wanted if not (results / name).is_file()]:
        raise UserError(
            f"{results} is no finished run: {len(absent)} of {len(wanted)} files are missing, {some(absent)}; make it first"
        )
    changed = set()
    for name in wanted:
        text = (results / name).read_text(encoding="utf-8")
        for private in {str(path) for path in (Path.home(), Path.cwd()) if path != Path("/")}:
            if f"{private}/" in text:
                raise UserError(f"{results / name} names a folder of this machine, {private}; nothing was kept")
        if made := name.endswith(".json") and read_json(results / name).get("provenance"):
            changed |= {made["git_commit"] or "no commit"} if made["git_dirty"] is not False else set()
    with atomic_path(place) as scratch:
        for name in wanted:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / name, scratch / name)
    size = sum((place / name).stat().st_size for name in wanted)
    note = f"; some were made by changed code, beside commit {some(sorted(changed))}" if changed else ""
    return f"{place}: {len(wanted)} files of {results}, {size / 1e6:.1f} MB{note}"


def measured(config: Config, name: str) -> list[str]:
    """The measurements, and resolved models, that an artifact is made of, as paths from the folder of results."""
    results = Path(config.pathvars.results)
    files = [Path(file) for files in contents.needs(config, name).values() for file in files]
    return [str(file.relative_to(results)) for file in files if file.suffix == ".json" and results in file.parents]
