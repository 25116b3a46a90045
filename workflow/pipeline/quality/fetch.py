"""Questions of the hub, downloaded once for all models by a job that may ask it; scoring reads them without a network.

A folder of questions has what `datasets` saves of every subset that the lm-eval task reads, and a `source.json`:

    {"status": "ok", "data": IDENTITY, "subsets": [ARGUMENTS, ...]}     in the order of the folders 000, 001, ...;
                                       of questions that lm-eval makes, those that take no `metadata`
    {"status": "unavailable", "reason": SENTENCE}     an `optional` source that cannot be had
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.catalogue import KNOWN_TASKS, Leaf, leaf_configs, leaves
from pipeline.sources.hub import HubError, HubRepository
from swiftkv.errors import UserError, one_line
from swiftkv.io import atomic_path, read_json, write_json

if TYPE_CHECKING:
    from datasets import Dataset

RECORD = "source.json"
SEED = 42  # of questions that lm-eval makes
STATE_METADATA = (
    "it makes its questions itself, so its entry needs `metadata`, such as {max_seq_lengths: [4096]} for RULER, or {} "
    "where it takes none"
)


class QuestionsUnavailable(Exception):
    """An optional source could not be had; the message is the reason, for the record."""


def from_hub(source: dict[str, Any] | None) -> bool:
    """Return True if the questions of a task with this `source` have to be fetched."""
    return not source or "hub" in source


def data_set(task: str) -> str:
    """Return the hub data set of an lm-eval task; of one that is not in the catalogue lm-eval's files tell it, in 10 s.

    Raises:
        UserError: lm-eval has no such task, or makes its questions itself.
    """
    hub = KNOWN_TASKS[task].hub if task in KNOWN_TASKS else leaf_configs(task)[0].get("dataset_path")
    if not hub:
        raise UserError(f"lm-eval task {task!r} has no data set on the hub: {STATE_METADATA}")
    return hub


def generate(config: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Dataset]:
    """Return the splits that a task's own function makes, the same ones each time.

    Args:
        config: its lm-eval config, with functions.
        metadata: what the function is given, such as `max_seq_lengths` and `tokenizer`.

    Raises:
        UserError: the function fails, for instance without the network that it downloads text from.
    """
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    try:
        with contextlib.redirect_stdout(None):  # it prints a line for every length that it tries
            return dict(config["custom_dataset"](**metadata, **config.get("dataset_kwargs") or {}))
    except Exception as error:  # of another's programme
        raise UserError(
            f"lm-eval cannot make the questions of {config['task']}: {type(error).__name__}: {one_line(error)[:300]}; "
            "check its `metadata`, and that this machine has the network if it downloads text"
        ) from None


def fetch_questions(task: dict[str, Any], output: Path) -> None:
    """Write the folder of fetched questions of one task, and what its metric needs of NLTK where NLTK keeps it.

    Args:
        task: its entry in the config: task (lm-eval's name) and source.
        output: the folder.

    Raises:
        UserError: the source cannot be had and is not optional, or lm-eval does not know the task.
    """
    import datasets

    name, parts = task["task"], leaves(task["task"])
    configs = [leaf.config(functions=False) for leaf in parts]
    subsets = list(dict.fromkeys(map(_subset, configs)))
    made = not task.get("source") and any("custom_dataset" in config for config in configs)
    source = task.get("source") or {"hub": None if made else data_set(name)}

    def load(hub: str, revision: str) -> list[Any]:
        return [datasets.load_dataset(hub, revision=revision, **json.loads(subset)) for subset in subsets]

    with atomic_path(output) as scratch:
        scratch.mkdir()
        try:
            if made:
                version = importlib.metadata.version("lm-eval")
                identity = {"kind": "generated", "id": name, "revision": version, "resolved": f"seed {SEED}"}
                found = _without_metadata(parts)
            else:
                repository = HubRepository("dataset", source)
                identity, found = repository.identity, dict(zip(subsets, repository.load(load), strict=True))
            for number, splits in enumerate(found.values()):
                datasets.DatasetDict(splits).save_to_disk(scratch / f"{number:03d}")
            if name in KNOWN_TASKS and KNOWN_TASKS[name].nltk:
                _fetch_nltk(KNOWN_TASKS[name].nltk)
            record = {"status": "ok", "data": identity, "subsets": list(found)}
        except HubError as error:
            if not source.get("optional"):
                raise
            record = {"status": "unavailable", "reason": str(error)}
        write_json(scratch / RECORD, record)
    print(f"{name}, {record['status']}: {record.get('reason') or record['data']['resolved']}", flush=True)


def _without_metadata(parts: list[Leaf]) -> dict[str, dict[str, Dataset]]:
    """Make the questions of the tasks that take no `metadata`, by `_subset`; scoring makes the others."""
    found = {}
    for leaf in parts:
        with contextlib.suppress(UserError):
            found[_subset(leaf.config(functions=False))] = generate(leaf.config(), {})
    return found


def _subset(config: dict[str, Any]) -> str:
    """Return what `datasets.load_dataset` takes, besides the data set, for an lm-eval task, as JSON; or its own function."""
    arguments = {"name": config.get("dataset_name")} | (config.get("dataset_kwargs") or {})
    if function := config.get("custom_dataset"):
        arguments["function"] = str(function).rpartition("/")[-1]
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
        QuestionsUnavailable: the source could not be had.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, record = folder, read_json(folder / RECORD)
        if record["status"] == "unavailable":
            raise QuestionsUnavailable(record["reason"])
        self.identity, self._subsets = record["data"], record["subsets"]

    def has(self, config: dict[str, Any]) -> bool:
        """Return True if the splits that one lm-eval task config reads were fetched."""
        return _subset(config) in self._subsets

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
