"""Reading what artifacts are made of: measurement files and published numbers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.measure.point import Point
from swiftkv.measure.run import asked
from swiftkv.records import read_json

Record = Mapping[str, Any]

MISSING, OOM = "n/a", "OOM"
_FIELDS = (
    "measure", "model", "variant", "kv_cache", "weights", "spec", "status", "reason", "settings", "result", "provenance",
)  # fmt: skip
_WHAT = {
    "score": "task",
    "throughput": "point",
    "latency": "point",
    "goodput": "point",
    "forward_time": "point",
    "kv_capacity": "point",
    "decode": "point",
}


@dataclass(frozen=True)
class Records:
    """Measurements by (model, variant, KV-cache format, what), where what is the task or the point, or empty."""

    by_key: Mapping[tuple[str, str, str, str], Record]

    def find(self, model: str, variant: str, kv_cache: str = "auto", what: str = "") -> Record | None:
        """The record of one cell; None where nothing was measured."""
        return self.by_key.get((model, variant, kv_cache, what))

    def ok(self, model: str, variant: str, kv_cache: str = "auto", what: str = "") -> Record | None:
        """The record of one cell if it has numbers."""
        record = self.find(model, variant, kv_cache, what)
        return record if record and record["status"] == "ok" else None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.by_key.values())


def read_records(files: Iterable[str | Path], *measures: str) -> Records:
    """Measurement files, all of the given kinds.

    Raises:
        UserError: a missing, damaged or incomplete file, another kind of measurement, or two files for one cell.
    """
    records: dict[tuple[str, str, str, str], Record] = {}
    for file in files:
        record = read_json(file)
        if not isinstance(record, dict) or (missing := [name for name in _FIELDS if name not in record]):
            lacking = f": it has no {', '.join(missing)}" if isinstance(record, dict) else ""
            raise UserError(f"{file} is not a measurement file{lacking}; delete it and run again")
        if record["measure"] not in measures:
            wanted = " or ".join(measures)
            raise UserError(f"{file} is a {record['measure']} record, but this artifact is made of {wanted} ones")
        if record["status"] == "ok" and not record["result"]:
            raise UserError(f"{file} has status 'ok' and no result; delete it and run again")
        what = record["settings"].get(_WHAT.get(record["measure"], ""), "")
        key = (record["model"]["name"], record["variant"], record["kv_cache"], what)
        if key in records:
            raise UserError(f"{file} is a second measurement of {' '.join(filter(None, key))}; give one file for each")
        records[key] = record
    return Records(records)


def check_settings(entry: Mapping[str, Any], files: Mapping[str, Iterable[str | Path]]) -> None:
    """Refuse records of other settings, or of another spec, than the entry that labels them; compared is what both name.

    Args:
        entry, files: as `make.make` takes them; files that are no records are passed over.

    Raises:
        UserError: the first record that differs.
    """
    for name, paths in files.items():
        for path in (path for path in paths if Path(path).suffix == ".json"):
            record = read_json(path)
            if not isinstance(record, dict) or any(field not in record for field in _FIELDS):
                continue
            shown, found = _shown(entry, name, record), {**record["settings"], "spec": record["spec"]}
            if found["spec"] and shown.get("spec"):  # a record's has its reductions too
                found["spec"] = {key: found["spec"].get(key) for key in shown["spec"]}
            for key in shown:
                if key in found and found[key] != shown[key]:
                    raise UserError(
                        f"{path} was measured with {key} {json.dumps(found[key])}, but {entry['name']} shows {key} "
                        f"{json.dumps(shown[key])}; delete it and run again, or set {key} back in the configuration"
                    )


def _shown(entry: Mapping[str, Any], name: str, record: Record) -> dict[str, Any]:
    """What an entry says of the settings of one of its records, which is among its files called `name`."""
    shown = dict(entry["settings"].get(name, {}))
    task, point = (entry.get(what, {}).get(record["settings"].get(what[:-1])) for what in ("tasks", "points"))
    if record["measure"] == "score" and task:
        shown |= {key: task[key] for key in ("metric", "filter", "shots", "limit", "chat_template")}
        shown["lm_eval_task"] = task["task"]
    elif point:
        shown |= asked(Point(record["settings"]["point"], point, gpus=0, threads=0))
    specs = entry["specs"].get(record["model"]["name"], {})
    return shown | ({"spec": specs[record["variant"]]} if record["variant"] in specs else {})


def read_published(files: Iterable[str | Path]) -> list[Record]:
    """Rows of published CSV files, in order; numbers where a cell is a number, None where it is empty.

    Raises:
        UserError: a missing file.
    """
    rows = []
    for file in files:
        try:
            with open(file, newline="") as lines:
                rows += [{name: _number(cell) for name, cell in row.items()} for row in csv.DictReader(lines)]
        except FileNotFoundError:
            raise UserError(f"{file} does not exist") from None
    return rows


def published_values(rows: Iterable[Record], item: str) -> list[Record]:
    """The rows of `values.csv` about one artifact."""
    return [row for row in rows if row.get("item") == item]


def reason(entry: Mapping[str, Any], record: Record | None, model: str, variant: str) -> str:
    """Why a cell has no value."""
    if record is not None:
        return record["reason"] or "no reason recorded"
    return entry["unmeasured"].get(model, {}).get(variant) or "not measured"


def _number(cell: str | None) -> float | str | None:
    if cell is None or cell == "":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
