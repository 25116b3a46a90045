"""Reading what artifacts are made of: measurement files and published numbers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.artifacts.kind import Entry, Files
from pipeline.config.points import POINTS
from pipeline.measure.run import read_point, recorded_settings
from pipeline.statistics import mean_of_turns
from swiftkv.errors import UserError
from swiftkv.io import read_json

Published = Mapping[str, Any]
"""A row of a file of resources/paper."""

MISSING, OOM = "n/a", "OOM"
_SECTIONS = (
    "measure", "model", "variant", "kv_cache", "weights", "spec", "status", "reason", "settings", "result", "provenance",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A measurement, or the cell of one that was never made: its status is "missing", and its sections are empty.

    Attributes are the sections of a measurement file, see `pipeline.records.measurement`; without numbers `result` is empty.
    """

    measure: str
    model: Mapping[str, Any]
    variant: str
    kv_cache: str = "auto"
    status: str = "missing"
    reason: str | None = None
    weights: str | None = None
    spec: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """The content of a measurement file.

        Raises:
            UserError: the file is missing, damaged or incomplete.
        """
        content = read_json(path)
        if not isinstance(content, dict):
            raise UserError(f"{path} is not a measurement file; delete it and run again")
        required = (*_SECTIONS, *(("engine", "cost") if content.get("measure") in POINTS else ()))
        if missing := [name for name in required if name not in content]:
            raise UserError(
                f"{path} is not a measurement file: it has no {', '.join(missing)}; delete it and run again"
            )
        if content["status"] == "ok" and not content["result"]:
            raise UserError(f"{path} has status 'ok' and no result; delete it and run again")
        return cls.of(content)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Record:
        """The record of a measurement file's content."""
        return cls(**{each.name: content[each.name] for each in fields(cls) if content.get(each.name) is not None})

    @property
    def exists(self) -> bool:
        """Whether it was measured, with or without success."""
        return self.status != "missing"

    @property
    def ok(self) -> bool:
        """Whether it has numbers."""
        return self.status == "ok"

    def value(self, name: str) -> Any:
        """A number of the result; None where there is none."""
        return self.result.get(name)

    @property
    def throughput(self) -> float | None:
        """Input and output tokens a second."""
        return self.value("tokens_per_second")

    @property
    def scatter(self) -> float | None:
        """The relative standard error of its throughput; None where it was measured once."""
        seconds = self.value("samples_seconds") or []
        if self.throughput is None or len(seconds) < 2:
            return None
        mean, stderr = mean_of_turns(seconds)
        return stderr / mean

    def speedups(self, unit: str = "seconds", place: int | None = None) -> list[float]:
        """The baseline's time over its own in each turn of both; none where they were not measured in turns.

        Args:
            unit: of the result's `samples_...`.
            place: of the batch, where there are several.
        """
        both = [self.value(f"{side}samples_{unit}") for side in ("baseline_", "")]
        if not all(both):
            return []
        baseline, own = both if place is None else (times[place] for times in both)
        return [theirs / ours for theirs, ours in zip(baseline, own, strict=True)]

    @property
    def why(self) -> str:
        """Why it has no numbers."""
        return self.reason or "no reason recorded"

    @property
    def blank(self) -> str:
        """What stands in a cell without a number: `OOM`, or `n/a`."""
        return OOM if self.status == "oom" else MISSING

    @property
    def what(self) -> str:
        """The task or the point; empty where there is none."""
        return self.settings.get("task") or self.settings.get("point") or ""

    @property
    def case(self) -> tuple[str, str]:
        """Variant and KV-cache format."""
        return self.variant, self.kv_cache

    @property
    def name(self) -> str:
        """How errors call it."""
        return "/".join([self.what or self.measure, self.model["name"], *self.case])

    @property
    def gpus(self) -> list[str]:
        """Names of the machine's GPUs; empty on a processor."""
        return list(self.provenance.get("hardware", {}).get("gpus") or [])

    @property
    def devices(self) -> int | None:
        """GPUs one server used (tensor parallel size); 1 on a processor, None where nothing was measured."""
        return self.settings.get("tensor_parallel_size") or 1 if self.exists else None

    @property
    def device(self) -> str:
        """What one device is: the GPU's name, or the processor and its cores."""
        if self.gpus:
            return "/".join(sorted(set(self.gpus)))
        hardware = self.provenance["hardware"]
        processor = re.sub(r"\((R|TM|r|tm)\)| CPU\b| @ .*$", "", str(hardware.get("processor") or "unknown processor"))
        cores = hardware.get("cores")
        return " ".join(processor.split()) + (f", {cores} core{'s' if cores != 1 else ''}" if cores else "")

    @property
    def machine(self) -> str:
        """The hardware: `4 × NVIDIA H100 80GB HBM3`, or the processor and its cores."""
        return f"{self.devices} × {self.device}" if self.gpus else self.device

    def conditions(self, hardware: bool = True, software: bool = True) -> str:
        """Hardware, engine, mode and weights, for titles; empty where nothing was measured."""
        if not self.exists:
            return ""
        parts = [self.machine] if hardware else []
        if software:
            version, quantization = self.engine.get("vllm"), self.settings.get("quantization")
            parts += [f"vLLM {version}"] if version else []
            parts += [str(self.engine["compilation"])] if self.engine.get("compilation") else []
            if self.dummy or quantization:
                parts.append(
                    " ".join(filter(None, [self.dummy and "dummy", quantization and quantization.upper(), "weights"]))
                )
        return ", ".join(parts)

    @property
    def software(self) -> str:
        """The engine of a served model, or the library that computed."""
        if self.engine:
            return self.conditions(hardware=False)
        library = "lm-eval" if self.measure == "score" else "transformers"
        return f"{library} {self.provenance.get('libraries', {}).get(library)}"

    @property
    def dummy(self) -> bool:
        """Whether its weights are not a model's, but numbers of the same shapes."""
        return self.weights == "dummy"

    def limit(self, name: str = "request_speedup_limit") -> float | None:
        """The speed-up over the baseline that the FLOP count allows; None where nothing is known."""
        return self.cost.get(name)


@dataclass(frozen=True)
class Records:
    """Measurements of one kind by (model, variant, KV-cache format, task or point or empty).

    `unmeasured` says by model and variant why there can be none, as a resolved entry does.
    """

    measure: str
    by_key: Mapping[tuple[str, str, str, str], Record]
    unmeasured: Mapping[str, Mapping[str, str]]

    def find(self, model: str, variant: str, kv_cache: str = "auto", what: str = "") -> Record:
        """The record of one cell; a missing one where nothing was measured."""
        reason = self.unmeasured.get(model, {}).get(variant) or "not measured"
        missing = Record(self.measure, {"name": model}, variant, kv_cache, reason=reason)
        return self.by_key.get((model, variant, kv_cache, what), missing)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.by_key.values())


def read_records(entry: Entry, files: Iterable[str | Path], measure: str) -> Records:
    """What was measured of an entry.

    Args:
        files: measurement files, all of the kind `measure`.

    Raises:
        UserError: a missing, damaged or incomplete file, another kind of measurement, or two files for one cell.
    """
    records: dict[tuple[str, str, str, str], Record] = {}
    for file in files:
        record = Record.read(file)
        if record.measure != measure:
            raise UserError(f"{file} is a {record.measure} record, but this artifact is made of {measure} ones")
        key = (record.model["name"], *record.case, record.what)
        if key in records:
            raise UserError(f"{file} is a second measurement of {' '.join(filter(None, key))}; give one file for each")
        records[key] = record
    return Records(measure, records, entry.get("unmeasured", {}))


def check_settings(entry: Mapping[str, Any], files: Mapping[str, Iterable[str | Path]]) -> list[Record]:
    """Refuse records of other settings, or of another spec, than the entry that labels them; compared is what both name.

    Args:
        entry, files: as `make.make_artifact` takes them; files that are no records are passed over.

    Returns:
        The records.

    Raises:
        UserError: the first record that differs, or that was computed in another number format than the others.
    """
    formats: dict[tuple[str, str], tuple[str | Path, str]] = {}
    records = []
    for name, paths in files.items():
        for path in (path for path in paths if Path(path).suffix == ".json"):
            try:
                record = Record.read(path)
            except UserError:
                continue
            records.append(record)
            shown, found = _shown(entry, name, record), {**record.settings, "spec": record.spec}
            if found["spec"] and shown.get("spec"):  # a record's has its reductions too
                found["spec"] = {key: found["spec"].get(key) for key in shown["spec"]}
            for key in shown:
                if key in found and found[key] != shown[key]:
                    raise UserError(
                        f"{path} was measured with {key} {json.dumps(found[key])}, but {entry['name']} shows {key} "
                        f"{json.dumps(shown[key])}; delete it and run again, or set {key} back in the configuration"
                    )
            if dtype := record.settings.get("dtype"):
                first, before = formats.setdefault((record.measure, record.model["name"]), (path, dtype))
                if dtype != before:
                    raise UserError(
                        f"{entry['name']} would compare {first}, computed in {before}, with {path}, computed in {dtype}; "
                        "delete the records of one of the two machines and run again"
                    )
    return records


def provenance(records: Sequence[Record]) -> list[str]:
    """One line on the records of an artifact: models, machines, engines, number, seeds and dates; none without records."""
    made = [record for record in records if record.exists]
    if not made:
        return []

    def distinct(values: Iterable[Any]) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(values) if value is not None)

    days = sorted({record.provenance["finished"][:10] for record in made if record.provenance.get("finished")})
    seeds = distinct(sorted({seed for record in made if (seed := record.settings.get("seed")) is not None}))
    parts = [
        distinct(record.model["title"] for record in made),
        distinct(record.machine for record in made if record.provenance.get("hardware")),
        distinct(sorted({record.software for record in made})),
        f"{len(made)} record{'s' if len(made) > 1 else ''}",
        seeds and f"seed {seeds}",
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
    ]
    if any(record.ok and record.value("n") and record.value("n") < record.value("n_total") for record in made):
        parts.append("scored on random subsets of the questions")
    return ["; ".join(filter(None, parts)) + "."]


def _shown(entry: Mapping[str, Any], name: str, record: Record) -> dict[str, Any]:
    """What an entry says of the settings of one of its records, which is among its files called `name`."""
    shown = dict(entry["settings"].get(name, {}))
    task, point = (entry.get(what, {}).get(record.settings.get(what[:-1])) for what in ("tasks", "points"))
    if record.measure == "score" and task:
        shown |= {key: task[key] for key in ("metric", "filter", "shots", "limit", "chat_template")}
        shown["lm_eval_task"] = task["task"]
    elif point:
        shown |= recorded_settings(read_point(record.what, point, gpus=0, threads=0))
        if shown["dtype"] == "auto":  # the record has what that was on its machine
            del shown["dtype"]
    specs = entry["specs"].get(record.model["name"], {})
    return shown | ({"spec": specs[record.variant]} if record.variant in specs else {})


def read_published(files: Iterable[str | Path]) -> list[Published]:
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


def read_statements(entry: Entry, files: Files) -> list[Published]:
    """The rows of `values.csv` about an artifact, among those that `item` names; raises as `read_published`."""
    rows = read_published(files.get("published", ()))
    return [row for row in rows if entry["name"] in str(row.get("item")).split()]


def _number(cell: str | None) -> float | str | None:
    if cell is None or cell == "":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
