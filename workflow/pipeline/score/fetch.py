"""Questions of the hub, downloaded once for all models by a job that may ask it; scoring reads them without a network.

A folder of questions has what `datasets` saves of every subset that the lm-eval task reads, data of NLTK in `nltk_data`
where the metric needs some, and a `source.json`:

    {"status": "ok", "data": IDENTITY, "subsets": {ARGUMENTS: FOLDER}}
    {"status": "unavailable", "reason": SENTENCE}     an `optional` source that cannot be had
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.catalogue import KNOWN, leaf_configs
from pipeline.sources.hub import HubError, HubRepository, ask
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json, write_json

if TYPE_CHECKING:
    from datasets import Dataset

RECORD = "source.json"
NLTK = "nltk_data"
PLANNING_SECONDS = 5  # how long planning waits for a hub that could not be reached before


class Unavailable(Exception):
    """An optional source could not be had; the message is the reason, for the record."""


def from_hub(source: dict[str, Any] | None) -> bool:
    """Whether the questions of a task with this `source` have to be fetched."""
    return not source or "hub" in source


def data_set(task: str) -> str:
    """Return the hub data set of an lm-eval task; of one that is not in the catalogue lm-eval's files tell it, in 10 s.

    Raises:
        UserError: lm-eval has no such task.
    """
    return KNOWN[task].hub if task in KNOWN else leaf_configs(task)[0]["dataset_path"]


def fetch_questions(task: dict[str, Any], output: Path, attempts: Path) -> None:
    """Write the folder of fetched questions of one task.

    Args:
        task: its entry in the config: task (lm-eval's name) and source.
        output: the folder.
        attempts: text file that gets a line for every attempt in which an optional source could not be had.

    Raises:
        UserError: the source cannot be had and is not optional, or lm-eval does not know the task.
    """
    source = task.get("source") or {"hub": data_set(task["task"])}
    try:
        with atomic_path(output) as scratch:
            scratch.mkdir()
            record = _fetch(task["task"], source, scratch)
            write_json(scratch / RECORD, record)
        outcome = record["data"]["resolved"]
    except HubError as error:
        if not source.get("optional"):
            raise
        record, outcome = {"status": "unavailable", "reason": str(error)}, str(error)
        write_json(output / RECORD, record)
        with attempts.open("a", encoding="utf-8") as lines:
            lines.write(f"{error}\n")
    print(f"{task['task']}, {record['status']}: {outcome}", flush=True)


def _fetch(task: str, source: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the questions below `folder` and return the content of its source.json."""
    import datasets

    repository = HubRepository("dataset", source)
    arguments = {_subset(config): _arguments(config) for config in leaf_configs(task)}
    for number, splits in enumerate(repository.tables(*arguments.values())):
        datasets.DatasetDict(splits).save_to_disk(folder / f"{number:03d}")
    if package := getattr(KNOWN.get(task), "nltk", None):
        _fetch_nltk(package, folder / NLTK)
    subsets = {subset: f"{number:03d}" for number, subset in enumerate(arguments)}
    return {"status": "ok", "data": repository.identity, "subsets": subsets}


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    """Return what `datasets.load_dataset` takes, besides the data set, for an lm-eval task."""
    arguments = dict(config.get("dataset_kwargs") or {})
    arguments.pop("trust_remote_code", None)  # `datasets` no longer takes it
    return {"name": config.get("dataset_name"), **arguments}


def _subset(config: dict[str, Any]) -> str:
    return json.dumps(_arguments(config), sort_keys=True)


def _fetch_nltk(package: str, folder: Path) -> None:
    """Download a package of NLTK, which verifies its checksum; one that is installed here will do as well."""
    import nltk

    folder.mkdir()
    try:
        nltk.download(package, download_dir=str(folder), quiet=True, raise_on_error=True)
    except ValueError as error:  # whatever it was
        try:
            nltk.data.find(f"tokenizers/{package}")
        except LookupError:
            raise HubError(
                f"NLTK's {package} cannot be downloaded ({error}): connect to the network, or `nltk.download` it elsewhere "
                "into a folder that NLTK_DATA names"
            ) from None


class Fetched:
    """A folder that `fetch_questions` wrote; its data of NLTK becomes known to NLTK.

    Attributes:
        identity: the data set's, for records.

    Raises:
        Unavailable: the source could not be had.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, record = folder, read_json(folder / RECORD)
        if record["status"] == "unavailable":
            raise Unavailable(record["reason"])
        self.identity, self._subsets = record["data"], record["subsets"]
        if (folder / NLTK).is_dir():
            import nltk

            nltk.data.path.insert(0, str((folder / NLTK).resolve()))

    def load(self, config: dict[str, Any]) -> dict[str, Dataset]:
        """Return the raw splits that one lm-eval task config reads (its dataset_name and dataset_kwargs).

        Raises:
            UserError: they were not fetched, or a file is missing or damaged.
        """
        import datasets

        try:
            return dict(datasets.load_from_disk(self.folder / self._subsets[_subset(config)], keep_in_memory=True))
        except (LookupError, OSError, ValueError) as error:
            raise UserError(
                f"the questions of {config['task']} in {self.folder} are missing or damaged ({type(error).__name__}); "
                "delete it and run again, then they are fetched again"
            ) from None


def attempt(task: dict[str, Any], folder: Path, attempts: Path) -> int:
    """Number the attempt to fetch a task's questions that is made next, or was made last if that suffices.

    Snakemake runs the job again when this parameter changes: when the last attempt failed and the source answers now. The
    network is asked in that case only. `folder` and `attempts` are those of `fetch_questions`.
    """
    failed = len(attempts.read_text().splitlines()) if attempts.exists() else 0
    record = folder / RECORD
    unavailable = record.exists() and read_json(record)["status"] == "unavailable"
    return failed - 1 if failed and unavailable and not _answers(**task["source"]) else failed


@functools.cache
def _answers(hub: str, revision: str = "main", **_: Any) -> bool:
    from huggingface_hub import HfApi

    try:
        ask("dataset", hub, revision, PLANNING_SECONDS)
        HfApi().auth_check(hub, repo_type="dataset")  # a gate
    except Exception:  # any of many: it does not answer
        return False
    return True
