"""Reading what tables are made of: measurement files, published numbers and command-line arguments in JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.records import read_json

Record = dict[str, Any]


def read_records(files: Iterable[str | Path], keys: tuple[str, ...]) -> dict[tuple[str, ...], Record]:
    """Measurement files by the values of `keys`, all of one model.

    Raises:
        UserError: a missing, damaged or incomplete file, two files for one key, or files of two models.
    """
    records: dict[tuple[str, ...], Record] = {}
    for file in files:
        record = read_json(file)
        if missing := [key for key in ("model", "title", *keys) if not isinstance(record, dict) or key not in record]:
            raise UserError(f"{file} is not a measurement this table is made of: it has no {', '.join(missing)}")
        key = tuple(record[name] for name in keys)
        if key in records:
            raise UserError(f"{file} is a second measurement of {' '.join(key)}; give one file for each")
        records[key] = record
    only_model(records)
    return records


def read_cost(file: str | Path) -> Record:
    """A cost record.

    Raises:
        UserError: a missing or damaged file, or another kind of file.
    """
    record = read_json(file)
    if not isinstance(record, dict) or not isinstance(record.get("variants"), dict) or not record["variants"]:
        raise UserError(f"{file} is not a cost record with at least one variant; delete it and run again")
    return record


def read_similarities(files: Iterable[str | Path]) -> list[Record]:
    """Similarity records in the given order.

    Raises:
        UserError: a missing, damaged or incomplete file.
    """
    records = []
    for file in files:
        record = read_json(file)
        names = ("model", "title", "num_hidden_layers", "simscore", "pairwise")
        if not isinstance(record, dict) or any(name not in record for name in names):
            raise UserError(f"{file} is not a similarity record; delete it and run again")
        records.append(record)
    return records


def only_model(*groups: Mapping[Any, Record]) -> str | None:
    """The model all records are of; None without records.

    Raises:
        UserError: records of two models.
    """
    models = {record["model"] for group in groups for record in group.values()}
    if len(models) > 1:
        raise UserError(f"one table shows one model, but the files are of {', '.join(sorted(models))}")
    return next(iter(models), None)


def read_published(
    files: Iterable[str | Path], model: str | None, keys: tuple[str, ...]
) -> dict[tuple[str, ...], Record]:
    """Rows of the paper's CSV files for `model`, by the values of `keys`; numbers where a cell is a number.

    Args:
        files: CSV files; where two have the same row, the first counts.
        model: value of the column `model`; None takes all rows, of a file without that column too.
        keys: columns.

    Raises:
        UserError: a missing file or one without the columns.
    """
    rows: dict[tuple[str, ...], Record] = {}
    for file in files:
        try:
            with open(file, newline="") as lines:
                table = list(csv.DictReader(lines))
        except FileNotFoundError:
            raise UserError(f"{file} does not exist") from None
        for row in table:
            if missing := [name for name in (*([] if model is None else ["model"]), *keys) if name not in row]:
                raise UserError(f"{file} has no column {', '.join(missing)}")
            if model is None or row["model"] == model:
                rows.setdefault(tuple(row[name] for name in keys), {name: _number(cell) for name, cell in row.items()})
    return rows


def names(text: str) -> list[str]:
    """An ordered list of names given as a JSON list, as a JSON object (its keys) or separated by commas."""
    if text.lstrip().startswith(("[", "{")):
        return list(json_argument(text))
    return [name.strip() for name in text.split(",") if name.strip()]


def json_argument(text: str) -> Any:
    """A JSON command-line argument.

    Raises:
        UserError: it is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"this argument is not valid JSON ({error}): {text}") from None


def describe_source(source: Any) -> str:
    """Where a model or a data set came from, in a few words."""
    if not isinstance(source, Mapping):
        return str(source or "not recorded")
    # Either resolved ("kind" and "id") or as it stands in the config ({"hub": id}), where nothing could be resolved.
    kind = source.get("kind") or next((kind for kind in ("hub", "package", "local") if kind in source), None)
    identity, version = source.get("id") or source.get(kind), source.get("resolved") or source.get("revision")
    words = [str(word) for word in (kind, identity) if word]
    if version and str(version) not in words:
        words.append(str(version)[:12])
    return " ".join(words) or "not recorded"


def _number(cell: str | None) -> float | str | None:
    if cell is None or cell == "":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
