"""Collect the numbers of one artifact: measured in its records, and published by the paper and the blog post."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.artifacts import Content, Entry, Files, Row
from pipeline.artifacts.frame import frame, measured
from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.records import Case, Record, checked_records, describe_records, in_project
from pipeline.text import length_label
from swiftkv.errors import UserError

NOTHING = Case("", "", "")
_CELL = (*Case._fields, "point", "at", "metric", "against_model", "against", "against_kv_cache")


class Numbers:
    """The records of an entry, measured and published numbers as rows of the frame, and notes to print below.

    Raises:
        UserError: as `checked_records`, or a file does not exist.
    """

    def __init__(self, entry: Entry, files: Files) -> None:
        self.entry = entry
        self.records = checked_records(entry, files)
        self.published = published(entry, files.get("published", ()), self.records)
        self.rows = measured(self.records)
        self.notes = [*entry.get("notes", []), *describe_records(self.records)]

    def add(self, rows: Iterable[Mapping[Any, Any]]) -> None:
        """Add rows that the artifact computes from others."""
        self.rows = pd.concat([self.rows, frame(rows)], ignore_index=True)
        self.__dict__.pop("_cells", None)

    def of(self, metric: str) -> pd.DataFrame:
        """Return the measured rows of a metric."""
        return self.rows[self.rows["metric"] == metric]

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
        against: Case = NOTHING, published: bool = False,
    ) -> Row | None:  # fmt: skip
        """Return the row of a number, with None in empty cells; None if there is no such row."""
        return self._cells.get((published, *case, point, at, metric, *against))

    def value(self, case: Case, metric: str, point: str = "") -> float | None:
        """Return the value of a number, if there is one."""
        row = self.find(case, metric, point)
        return row["value"] if row else None

    def along(self, case: Case, metric: str, point: str) -> pd.DataFrame:
        """Return the rows of a metric that have a value, sorted along its axis."""
        rows = self.rows[(self.rows[[*Case._fields, "metric", "point"]] == [*case, metric, point]).all(axis=1)]
        return rows.dropna(subset=["at", "value"]).sort_values("at")


def read_csv(file: str | Path) -> list[dict[str, str]]:
    """Read the lines of a CSV file, every cell as printed.

    Raises:
        UserError: the file does not exist.
    """
    try:
        return pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None


def number(text: str | None) -> float | None:
    """Return the number of a printed cell; None if it is empty or no number."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def published(entry: Entry, files: Iterable[str | Path], records: Sequence[Record]) -> pd.DataFrame:
    """Read the published numbers of the models of an entry, as printed; speeds only if the same hardware ran here.

    A file has a column a task or metric; speeds are by memory limit or input length. Of the statements of running text
    (`values.csv`), those about this artifact are read.
    """
    models = {model["published"]: model["name"] for model in entry["models"]} | {"": ""}
    rows: list[Row] = []
    for file in map(Path, files):
        for line in read_csv(file):
            if line.get("model") not in models:
                continue
            known: Row = {
                "source": "published", "model": models[line["model"]], "variant": line["variant"], "status": "ok",
                "reason": line.get("note"), "file": in_project(file),
            }  # fmt: skip
            speed = bool(entry["points"] if file.stem == "values" else {"memory_gb", "input_length"} & line.keys())
            if speed and not _on_paper_hardware(records, known["model"], line):
                continue
            if file.stem != "values":
                rows += (known | cell for cell in _cells(entry, line, speed))
            elif entry["name"] in line["item"].split():
                rows.append(known | _statement(line))
    return frame(rows)


def _statement(line: Mapping[str, str]) -> Row:
    low, high = number(line["low"]), number(line["high"])
    return {
        "metric": line["quantity"], "value": low if low == high else None, "low": low, "high": high, "text": line["text"],
        "at": number(line["layer"] or line["input_tokens"]), "conditions": line["source"],
    }  # fmt: skip


def _cells(entry: Entry, line: Mapping[str, str], speed: bool) -> Iterator[Row]:
    known: Row = {"kv_cache": line.get("kv_cache") or "auto", "part": line.get("part")}
    points = [point for point, settings in entry["points"].items() if _is_at(settings, line)] if speed else [""]
    if not speed:  # of tasks, which a printed average is over
        tasks = line.keys() - METRICS.keys() - {"acrosskv"}
        known["n"] = sum(number(line[column]) is not None for column in tasks)
    for point, (column, cell) in itertools.product(points, line.items()):
        if cell and (column in METRICS or column in entry["tasks"]):
            value = number(cell)
            text = f"{value:,.0f}" if speed and value else cell
            yield known | {"point": point, "metric": column, "value": value, "text": text}
    if group := number(line.get("acrosskv")):
        text = f"{group:.0f}-way ({line['kv_cache_reduction_percent']}%)" if group > 1 else "–"
        yield known | {"metric": "acrosskv", "value": group, "text": text}


def _on_paper_hardware(records: Sequence[Record], model: str, line: Mapping[str, str]) -> bool:
    """Return True if a model's serving records ran on as many H100 GPUs as the published ones; one if none is stated."""
    count = number(line.get("gpus")) or 1
    own = [record for record in records if record.case.model == model]
    return bool(own) and all(
        record.gpus and all("H100" in gpu for gpu in record.gpus) and record.devices == count for record in own
    )


def _is_at(point: Content, line: Mapping[str, str]) -> bool:
    """Return True if a point has the memory limit or the input length of a published line."""
    if "memory_gb" in line:
        return point.get("memory_gib") == number(line["memory_gb"])
    return length_label(point["input_tokens"]) == line["input_length"]
