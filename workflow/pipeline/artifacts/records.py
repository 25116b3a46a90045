"""Measurement files: reading them, and refusing records that an artifact must not show or put side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.artifacts import Content, Entry, Files
from pipeline.artifacts.metrics import INPUTS
from pipeline.config import PROJECT
from pipeline.config.points import POINTS
from pipeline.measure.run import read_point, recorded_settings
from pipeline.text import span
from swiftkv.errors import UserError
from swiftkv.io import read_json

_OPTIONAL = ("engine", "cost", "data", "checkpoint", "file", "base")


class Case(NamedTuple):
    """A variant of a model with a KV-cache format; the model is None if this scale has none for the role."""

    model: str | None
    variant: str
    kv_cache: str = "auto"

    @property
    def unchanged(self) -> bool:
        """Return True if it is the baseline, with which others are compared."""
        return self[1:] == ("baseline", "auto")


class Record(NamedTuple):
    """A measurement: the sections of its file, see `pipeline.records.measurement`; without numbers `result` is empty."""

    measure: str
    model: Content
    variant: str
    kv_cache: str = "auto"
    status: str = "ok"
    reason: str = ""  # why it has no numbers
    weights: str | None = None
    spec: Content | None = None
    settings: Content = {}
    result: Content = {}
    engine: Content = {}
    cost: Content = {}
    data: Content | None = None
    checkpoint: Content | None = None
    provenance: Content = {}
    file: str = ""  # its place, as tables name it
    base: Record | None = None  # the baseline's of the same measurement that it is compared with

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """The content of a measurement file.

        Raises:
            UserError: the file is missing, damaged or incomplete.
        """
        content = read_json(path)
        known = content if isinstance(content, dict) else {}
        if missing := [name for name in cls._fields if name not in {*known, *_OPTIONAL}]:
            raise UserError(
                f"{path} is not a measurement file: it has no {', '.join(missing)}; delete it and run again"
            )
        if known["status"] == "ok" and not known["result"]:
            raise UserError(f"{path} has status 'ok' and no result; delete it and run again")
        return cls.of(known)._replace(file=in_project(path))

    @classmethod
    def of(cls, content: Content) -> Record:
        """The record of a measurement file's content."""
        return cls(**{name: content[name] for name in cls._fields if content.get(name) is not None})

    @property
    def ok(self) -> bool:
        """Return True if it has numbers."""
        return self.status == "ok"

    def value(self, name: str) -> Any:
        """A number of the result; None where there is none."""
        return self.result.get(name)

    def times(self, unit: str = "seconds", place: int | None = None, side: str = "") -> list[float]:
        """Its repeated times, or those of the baseline that took turns with it; empty where there are none.

        Args:
            unit: of the result's `samples_...`.
            place: of the batch, where there are several.
            side: "baseline_" or its own.
        """
        times = self.value(f"{side}samples_{unit}") or []
        return times if place is None or not times else times[place]

    def turns(self, unit: str = "seconds", place: int | None = None) -> tuple[list[float], list[float]] | None:
        """The times of the baseline and its own, measured in turns; None where they were not. Arguments as of `times`."""
        baseline, own = (self.times(unit, place, side) for side in ("baseline_", ""))
        return (baseline, own) if baseline and own else None

    @property
    def what(self) -> str:
        """The task or the point; empty where there is none."""
        return self.settings.get("task") or self.settings.get("point") or ""

    @property
    def case(self) -> Case:
        """Its model, variant and KV-cache format."""
        return Case(self.model["name"], self.variant, self.kv_cache)

    @property
    def gpus(self) -> list[str]:
        """Names of the machine's GPUs; empty on a processor."""
        return list(self.provenance.get("hardware", {}).get("gpus") or [])

    @property
    def devices(self) -> int:
        """GPUs one server used (tensor parallel size); 1 on a processor."""
        return self.settings.get("tensor_parallel_size") or 1

    @property
    def device(self) -> str:
        """Name of one device: the GPU's, or the processor and its cores."""
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

    @property
    def engine_words(self) -> list[str]:
        """Engine, mode and weights of a served model."""
        version, quantization = self.engine.get("vllm"), (self.settings.get("quantization") or "").upper()
        weights = " ".join(filter(None, ["dummy" if self.dummy else "", quantization]))
        words = [version and f"vLLM {version}", self.engine.get("compilation"), weights and f"{weights} weights"]
        return [word for word in words if word]

    @property
    def conditions(self) -> str:
        """Hardware, number format, engine, mode and weights."""
        return ", ".join(filter(None, [self.machine, self.settings.get("dtype"), *self.engine_words]))

    @property
    def software(self) -> str:
        """The engine of a served model, or the library that computed."""
        library = "lm-eval" if self.measure == "score" else "transformers"
        versions = self.provenance.get("libraries", {})
        return ", ".join(self.engine_words) if self.engine else f"{library} {versions.get(library)}"

    @property
    def dummy(self) -> bool:
        """Return True if its weights are not a model's, but numbers of the same shapes."""
        return self.weights == "dummy"


def read_records(files: Files) -> list[Record]:
    """The measurements among the files of an artifact; resolved models and artifacts are passed over.

    Raises:
        UserError: a missing, damaged or incomplete file, one of another measurement, or a second one for the same model,
            variant, KV cache and point.
    """
    records = {}
    for name in dict.fromkeys(INPUTS.values()):
        for path in files.get(name, ()):
            record = Record.read(path)
            if INPUTS.get(record.measure) != name:
                raise UserError(f"{path} is a {record.measure} record, but this artifact reads it as one of its {name}")
            key = (record.measure, *record.case, record.what)
            if key in records:
                raise UserError(
                    f"{path} is a second measurement of {' '.join(filter(None, key))}; give one file for each"
                )
            records[key] = record
    return list(records.values())


def in_project(path: str | Path) -> str:
    """A path without the place of the project on this machine."""
    path = Path(path)
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def checked_records(entry: Entry, files: Files) -> list[Record]:
    """The records of an artifact that may stand in it, side by side.

    Raises:
        UserError: as `read_records`; a record of other settings or another spec than the entry's; two of one model that were
            computed in other number formats, served under other conditions, or of other questions or checkpoints.
    """
    records, name = read_records(files), entry["name"]
    for record in records:
        _check_settings(entry, record)
    first = {}  # by model and condition, the first record that has it, and how
    for record in records:
        for what, value in _conditions(record).items():
            other, expected = first.setdefault((record.case.model, what), (record, value))
            if value != expected:
                raise UserError(
                    f"{name} would compare records that differ in {what}: {other.file} has {expected}, {record.file} has "
                    f"{value}; measure them again under the same conditions"
                )
    return records


def _conditions(record: Record) -> Content:
    """Return the conditions that all records of a model must share."""
    settings = record.settings
    kind = "serving" if record.measure in POINTS else record.measure
    found = {f"the number format of {kind}": settings.get("dtype")}
    if record.measure in POINTS:
        found |= {
            "hardware": record.machine,
            "processor threads": None if record.gpus else settings.get("threads"),
            "vLLM version": record.engine.get("vllm"),
            "compilation": record.engine.get("compilation"),
            "weights": "dummy weights" if record.dummy else "real weights",
            "quantization": settings.get("quantization"),
        }
    # Speed and quality are of one checkpoint.
    if record.measure in (*POINTS, "score", "fidelity", "reading") and not record.dummy:
        found[f"checkpoint of {record.variant}"] = [record.weights, *(record.model[name] for name in _IDENTITY)]
    if questions := record.value("questions"):
        found[f"questions of {record.what}, or how they are asked"] = questions["sha256"]
    return {what: value for what, value in found.items() if value is not None}


_IDENTITY = ("name", "kind", "id", "revision", "resolved")


def _check_settings(entry: Entry, record: Record) -> None:
    """Refuse a record of other settings, or of another spec, than its entry; settings that both name are compared."""
    shown, found = _shown(entry, record), {**record.settings, "spec": record.spec}
    if found["spec"] and shown.get("spec"):  # a record's has its reductions too
        found["spec"] = {key: found["spec"].get(key) for key in shown["spec"]}
    for key in (key for key in shown if key in found and found[key] != shown[key]):
        raise UserError(
            f"{record.file} was measured with {key} {json.dumps(found[key])}, but {entry['name']} shows {key} "
            f"{json.dumps(shown[key])}; delete it and run again, or set {key} back in the configuration"
        )


def describe_records(records: Sequence[Record]) -> list[str]:
    """One line on the records of an artifact: models, machines, engines, number, seeds and dates; none without records."""
    if not records:
        return []
    seeds = sorted({seed for record in records if (seed := record.settings.get("seed")) is not None})
    subsets = any(record.ok and (record.value("n") or 0) < (record.value("n_total") or 0) for record in records)
    parts = [
        ", ".join(dict.fromkeys(record.model["title"] for record in records)),
        ", ".join(dict.fromkeys(record.machine for record in records)),
        ", ".join(sorted({record.software for record in records})),
        f"{len(records)} measurement{'s' if len(records) > 1 else ''}",
        f"seed {', '.join(map(str, seeds))}" if seeds else "",
        span([record.provenance["finished"][:10] for record in records], ""),
        "scored on random subsets of the questions" if subsets else "",
    ]
    return ["; ".join(filter(None, parts)) + "."]


def _shown(entry: Entry, record: Record) -> Content:
    """The settings that an entry has for one of its records."""
    shown = dict(entry["settings"].get(record.measure, {}))
    task, point = (entry[what].get(record.settings.get(what[:-1])) for what in ("tasks", "points"))
    if record.measure == "score" and task:
        shown |= {key: task[key] for key in ("metric", "filter", "shots", "limit", "chat_template")}
        shown["lm_eval_task"] = task["task"]
    elif point:
        shown |= recorded_settings(read_point(record.what, point, gpus=0, threads=0))
        if shown["dtype"] == "auto":  # the record has what that was on its machine
            del shown["dtype"]
    specs = entry["specs"].get(record.case.model, {})
    return shown | ({"spec": specs[record.variant]} if record.variant in specs else {})
