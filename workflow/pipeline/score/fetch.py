"""Questions of the hub, fetched once for all models by a job that may ask it: what scoring then reads needs no network.

A folder of fetched questions holds a `source.json` beside what `datasets` saves of every subset that the lm-eval task reads:

    {"status": "ok", "data": IDENTITY, "subsets": {ARGUMENTS: FOLDER}, "files": {FILE: SHA256}}
    {"status": "unavailable", "reason": SENTENCE}     an `optional` source that cannot be had

and, where the metric wants some, data of NLTK in `nltk_data`.
"""

from __future__ import annotations

import functools
import json
import shutil
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.catalogue import KNOWN, leaf_configs
from pipeline.sources.hub import HubError, HubRepository, ask, patiently
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, checksum, read_json, write_json

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
    """The hub data set that an lm-eval task asks; of a task that is not in the catalogue lm-eval's files tell it, in 10 s.

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
    with atomic_path(output) as scratch:
        scratch.mkdir()
        try:
            record = _fetch(task, scratch)
        except HubError as error:
            if not (task.get("source") or {}).get("optional"):
                raise
            shutil.rmtree(scratch)
            scratch.mkdir()
            record = {"status": "unavailable", "reason": str(error)}
            with attempts.open("a", encoding="utf-8") as lines:
                lines.write(f"{error}\n")
        write_json(scratch / RECORD, record)
    outcome = record["data"]["resolved"] if record["status"] == "ok" else record["reason"]
    print(f"{task['task']}, {record['status']}: {outcome}", flush=True)


def _fetch(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the questions below `folder`; the content of its source.json."""
    import datasets

    source = task.get("source") or {"hub": data_set(task["task"])}
    purpose, optional = f"questions of {task['task']}", source.get("optional", False)
    purpose += ", optional: without them its cells say n/a" if optional else ""
    repository = HubRepository("dataset", source["hub"], source.get("revision", "main"), purpose, optional)
    arguments = {_subset(config): _arguments(config) for config in leaf_configs(task["task"])}
    for number, splits in enumerate(repository.tables(*arguments.values())):
        datasets.DatasetDict(splits).save_to_disk(folder / f"{number:03d}")
    if package := getattr(KNOWN.get(task["task"]), "nltk", None):
        _fetch_nltk(package, folder / NLTK)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "status": "ok",
        "data": repository.identity,
        "subsets": {subset: f"{number:03d}" for number, subset in enumerate(arguments)},
        "files": {path.relative_to(folder).as_posix(): checksum(path) for path in files},
    }


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What `datasets.load_dataset` takes, besides the data set, for an lm-eval task."""
    arguments = dict(config.get("dataset_kwargs") or {})
    arguments.pop("trust_remote_code", None)  # `datasets` no longer takes it
    return {"name": config.get("dataset_name"), **arguments}


def _subset(config: dict[str, Any]) -> str:
    return json.dumps(_arguments(config), sort_keys=True)


def _fetch_nltk(package: str, folder: Path) -> None:
    """Download a package of NLTK, which holds it to its checksum; one that is installed here will do as well."""
    import nltk

    folder.mkdir()

    def download() -> None:
        try:
            nltk.download(package, download_dir=str(folder), quiet=True, raise_on_error=True)
        except ValueError as error:  # whatever it was
            raise ConnectionError(str(error)) from None

    try:
        patiently(download, f"NLTK's {package}")
    except OSError as error:
        try:
            nltk.data.find(f"tokenizers/{package}")
        except LookupError:
            raise HubError(
                f"NLTK's {package} cannot be downloaded ({error}): connect to the network, or `nltk.download` it elsewhere "
                "into a folder that NLTK_DATA names"
            ) from None


class Fetched:
    """A folder of fetched questions, held to its checksums; its data of NLTK becomes known to NLTK.

    Attributes:
        identity: what records say of the data set.

    Args:
        folder: a folder that `fetch_questions` wrote.

    Raises:
        Unavailable: the source could not be had.
        UserError: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, record = folder, read_json(folder / RECORD)
        if record["status"] == "unavailable":
            raise Unavailable(record["reason"])
        for name, sha256 in record["files"].items():
            path = folder / name
            if not path.is_file() or checksum(path) != sha256:
                raise UserError(
                    f"{path} is missing or damaged; delete {folder} and run again, then it is fetched again"
                )
        self.identity, self._subsets = record["data"], record["subsets"]
        if (folder / NLTK).is_dir():
            import nltk

            nltk.data.path.insert(0, str((folder / NLTK).resolve()))

    def load(self, config: dict[str, Any]) -> dict[str, Dataset]:
        """The raw splits that one lm-eval task config reads (its dataset_name and dataset_kwargs).

        Raises:
            UserError: they were not fetched.
        """
        import datasets

        if (subset := _subset(config)) not in self._subsets:
            raise UserError(f"{self.folder} lacks the questions of {config['task']}; delete it and run again")
        return dict(datasets.load_from_disk(self.folder / self._subsets[subset], keep_in_memory=True))


def attempt(task: dict[str, Any], folder: Path, attempts: Path) -> int:
    """The number of the attempt to fetch a task's questions that is made next, or was made last if that suffices.

    A parameter of the job that fetches: Snakemake runs it again when the number changes, which is when the last attempt
    found nothing and the source answers now. The network is asked in that case only.

    Args:
        task: its entry in the config.
        folder, attempts: output and attempts of `fetch_questions`.
    """
    failed = len(attempts.read_text().splitlines()) if attempts.exists() else 0
    record = folder / RECORD
    unavailable = record.exists() and read_json(record)["status"] == "unavailable"
    return failed - 1 if failed and unavailable and not _answers(task["task"], **task["source"]) else failed


@functools.cache
def _answers(task: str, hub: str, revision: str = "main", **_: Any) -> bool:
    """Whether all that was missing could be had now, as far as a few seconds tell."""
    from huggingface_hub import HfApi

    try:
        ask("dataset", hub, revision, PLANNING_SECONDS)
        HfApi().auth_check(hub, repo_type="dataset")  # a gate
        if getattr(KNOWN.get(task), "nltk", None):
            from nltk.downloader import Downloader

            urllib.request.urlopen(Downloader.DEFAULT_URL, timeout=PLANNING_SECONDS).close()
    except Exception:  # any of many: it does not answer
        return False
    return True
