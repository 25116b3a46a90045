"""The numbers of one artifact: those of its records, and those that others published beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts.frame import Row, frame, measured
from pipeline.artifacts.metrics import METRICS, length_label
from pipeline.artifacts.records import Record, checked_records, in_project, provenance
from swiftkv.errors import UserError

Entry = Mapping[str, Any]
Files = Mapping[str, Sequence[Path]]


class Case(NamedTuple):
    """A variant of a model with a KV-cache format; the model is None where none plays the role of its part."""

    model: str | None
    variant: str
    kv_cache: str


NOTHING = Case("", "", "")
_CELL = (*Case._fields, "point", "at", "metric", "against_model", "against", "against_kv_cache")


class Numbers:
    """The records of an entry, their numbers and the published ones, each as rows of the frame, and the notes below.

    Raises:
        UserError: a file cannot be read, is of something else, or may not stand in this artifact.
    """

    def __init__(self, entry: Entry, files: Files) -> None:
        self.entry = entry
        self.records = checked_records(entry, files)
        self.published = published(entry, files.get("published", ()), self.records)
        self.rows = measured(self.records)
        self.notes: list[str] = [*entry.get("notes", []), *provenance(self.records)]

    def add(self, rows: Iterable[Mapping[Any, Any]]) -> None:
        """Add rows that the artifact computes from others."""
        self.rows = pd.concat([self.rows, frame(rows)], ignore_index=True)
        self.__dict__.pop("_cells", None)

    @property
    def data(self) -> pd.DataFrame:
        """All rows: the CSV."""
        return pd.concat([self.rows, self.published], ignore_index=True)

    @cached_property
    def _cells(self) -> dict[tuple[Any, ...], Row]:
        data = self.data
        return {
            (row["source"] == "published", *(row[name] for name in _CELL)): row
            for row in data.astype(object).where(data.notna(), None).to_dict("records")
        }

    def find(
        self, case: Case, metric: str, point: str = "", at: float | None = None, *,
        against: Case = NOTHING, theirs: bool = False,
    ) -> Row | None:  # fmt: skip
        """The row of a number, with None in empty cells; None where there is none."""
        return self._cells.get((theirs, *case, point, at, metric, *against))

    def value(self, case: Case, metric: str, point: str = "") -> float | None:
        """The value of a number, if there is one."""
        row = self.find(case, metric, point)
        return row["value"] if row else None

    def along(self, case: Case, metric: str, point: str) -> pd.DataFrame:
        """The rows of a metric with a value, by their place on its axis."""
        rows = self.rows[(self.rows[[*Case._fields, "metric", "point"]] == [*case, metric, point]).all(axis=1)]
        return rows.dropna(subset=["at", "value"]).sort_values("at")


def read_csv(file: str | Path) -> list[dict[str, str]]:
    """Lines of a CSV file, every cell as printed.

    Raises:
        UserError: a missing file.
    """
    try:
        return pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None


def number(text: str | None) -> float | None:
    """The number of a printed cell; None where it is none."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def published(entry: Mapping[str, Any], files: Iterable[str | Path], records: Sequence[Record]) -> pd.DataFrame:
    """The published numbers of the models of an entry, as printed; speeds only where the same hardware ran here.

    A file has a column a task or metric; speeds are by memory limit or input length. Statements of running text
    (`values.csv`) are those about this artifact.
    """
    models = {model["published"]: model["name"] for model in entry["models"]}
    rows: list[Row] = []
    for file in map(Path, files):
        for line in read_csv(file):
            if line.get("model") in models or (file.stem == "values" and not line["model"]):
                known = {"source": "published", "model": models.get(line["model"], ""), "file": in_project(file)}
                rows += _published_rows(entry, line, known, file.stem, records)
    return frame(rows)


def _published_rows(
    entry: Entry, line: Mapping[str, str], known: Row, stem: str, records: Sequence[Record]
) -> Iterator[Row]:
    known |= {"reason": line.get("note"), "status": "ok"}
    values, speeds = stem == "values", "memory_gb" in line or "input_length" in line
    if values and entry["name"] not in line["item"].split():
        return
    if (speeds or (values and "points" in entry)) and not _on_paper_hardware(records, known, line):
        return
    if values:
        low, high = number(line["low"]), number(line["high"])
        at = number(line["layer"]) if line["layer"] else number(line["input_tokens"])
        more = {"value": low if low == high else None, "low": low, "high": high, "text": line["text"], "at": at}
        yield known | more | {"variant": line["variant"], "metric": line["quantity"], "conditions": line["source"]}
        return
    numbers = {column: value for column, cell in line.items() if (value := number(cell)) is not None}
    group = numbers.pop("acrosskv", None)
    known |= {"variant": line["variant"], "kv_cache": line.get("kv_cache") or "auto", "part": line.get("part")}
    known |= {} if speeds else {"n": len(numbers.keys() - METRICS.keys())}  # of tasks, which a printed average is over
    points = [point for point, asked in entry["points"].items() if _is_at(asked, line)] if speeds else [""]
    for point, (column, cell) in itertools.product(points, line.items()):
        if cell and (column in METRICS or column in entry.get("tasks", {})):
            value = numbers.get(column)
            text = f"{value:,.0f}" if speeds and value else cell
            yield known | {"point": point, "metric": column, "value": value, "text": text}
    if group:
        text = f"{group:.0f}-way ({line['kv_cache_reduction_percent']}%)" if group > 1 else "–"
        yield known | {"metric": "acrosskv", "value": group, "text": text}


def _on_paper_hardware(records: Sequence[Record], known: Row, line: Mapping[str, str]) -> bool:
    """Whether a model's serving records ran on as many H100 GPUs as the published ones; one where none is stated."""
    count = number(line.get("gpus")) or 1
    mine = [record for record in records if record.model["name"] == known["model"]]
    return bool(mine) and all(
        record.gpus and all("H100" in gpu for gpu in record.gpus) and record.devices == count for record in mine
    )


def _is_at(point: Mapping[str, Any], line: Mapping[str, str]) -> bool:
    """Whether a point has the memory limit or the input length of a published line."""
    if "memory_gb" in line:
        return point.get("memory_gib") == number(line["memory_gb"])
    return length_label(point["input_tokens"]) == line["input_length"]
