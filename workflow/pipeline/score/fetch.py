"""Questions of the hub, downloaded once for all models by a job that may ask it; scoring reads them without a network.

A folder of questions has what `datasets` saves of every subset that the lm-eval task reads, and a `source.json`:

    {"status": "ok", "data": IDENTITY, "subsets": [ARGUMENTS, ...]}     in the order of the folders 000, 001, ...
    {"status": "unavailable", "reason": SENTENCE}     an `optional` source that cannot be had
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.catalogue import KNOWN, leaf_configs
from pipeline.sources.hub import HubError, HubRepository
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json, write_json

if TYPE_CHECKING:
    from datasets import Dataset

RECORD = "source.json"


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


def fetch_questions(task: dict[str, Any], output: Path) -> None:
    """Write the folder of fetched questions of one task, and what its metric needs of NLTK where NLTK keeps it.

    Args:
        task: its entry in the config: task (lm-eval's name) and source.
        output: the folder.

    Raises:
        UserError: the source cannot be had and is not optional, or lm-eval does not know the task.
    """
    import datasets

    name, source = task["task"], task.get("source") or {"hub": data_set(task["task"])}
    subsets = list(dict.fromkeys(map(_subset, leaf_configs(name))))

    def load(hub: str, revision: str) -> list[Any]:
        return [datasets.load_dataset(hub, revision=revision, **json.loads(subset)) for subset in subsets]

    with atomic_path(output) as scratch:
        scratch.mkdir()
        try:
            repository = HubRepository("dataset", source)
            for number, splits in enumerate(repository.load(load)):
                datasets.DatasetDict(splits).save_to_disk(scratch / f"{number:03d}")
            if name in KNOWN and KNOWN[name].nltk:
                _fetch_nltk(KNOWN[name].nltk)
            record = {"status": "ok", "data": repository.identity, "subsets": subsets}
        except HubError as error:
            if not source.get("optional"):
                raise
            record = {"status": "unavailable", "reason": str(error)}
        write_json(scratch / RECORD, record)
    print(f"{name}, {record['status']}: {record.get('reason') or record['data']['resolved']}", flush=True)


def _subset(config: dict[str, Any]) -> str:
    """Return what `datasets.load_dataset` takes, besides the data set, for an lm-eval task, as JSON."""
    arguments = {"name": config.get("dataset_name")} | (config.get("dataset_kwargs") or {})
    arguments.pop("trust_remote_code", None)  # `datasets` no longer takes it
    return json.dumps(arguments, sort_keys=True)


def _fetch_nltk(package: str) -> None:
    """Download a package of NLTK, which verifies its checksum; one that is installed here will do as well."""
    import nltk

    try:
        if not nltk.download(package, quiet=True):
            nltk.data.find(f"tokenizers/{package}")
    except (LookupError, OSError):
        raise HubError(
            f"NLTK's {package} cannot be downloaded: connect to the network, or `nltk.download` it elsewhere into a folder "
            "that NLTK_DATA names"
        ) from None


class Fetched:
    """A folder that `fetch_questions` wrote.

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

    def load(self, config: dict[str, Any]) -> dict[str, Dataset]:
        """Return the raw splits that one lm-eval task config reads (its dataset_name and dataset_kwargs).

        Raises:
            UserError: they were not fetched, or a file is missing or damaged.
        """
        import datasets

        try:
            number = self._subsets.index(_subset(config))
            return dict(datasets.load_from_disk(self.folder / f"{number:03d}", keep_in_memory=True))
        except (OSError, ValueError) as error:
            raise UserError(
                f"the questions of {config['task']} in {self.folder} are missing or damaged ({type(error).__name__}); "
                "delete it and run again, then they are fetched again"
            ) from None
