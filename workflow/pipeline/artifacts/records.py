"""Measurement files: reading them, and refusing records that an artifact must not show or put side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pipeline.artifacts.metrics import INPUTS
from pipeline.config.points import POINTS
from pipeline.measure.run import read_point, recorded_settings
from swiftkv.errors import UserError
from swiftkv.io import read_json

PROJECT = Path(__file__).parents[3]
_SECTIONS = (
    "measure", "model", "variant", "kv_cache", "weights", "spec", "status", "reason", "settings", "result", "provenance",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """A measurement: the sections of its file, see `pipeline.records.measurement`; without numbers `result` is empty."""

    measure: str
    model: Mapping[str, Any]
    variant: str
    kv_cache: str = "auto"
    status: str = "ok"
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
    file: str = ""  # its place, as tables name it

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
        return replace(cls.of(content), file=in_project(path))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Record:
        """The record of a measurement file's content."""
        return cls(**{each.name: content[each.name] for each in fields(cls) if content.get(each.name) is not None})

    @property
    def ok(self) -> bool:
        """Whether it has numbers."""
        return self.status == "ok"

    def value(self, name: str) -> Any:
        """A number of the result; None where there is none."""
        return self.result.get(name)

    def turns(self, unit: str = "seconds", place: int | None = None) -> tuple[list[float], list[float]] | None:
        """The times of the baseline and its own, measured in turns; None where they were not.

        Args:
            unit: of the result's `samples_...`.
            place: of the batch, where there are several.
        """
        both = [self.value(f"{side}samples_{unit}") for side in ("baseline_", "")]
        if not all(both):
            return None
        baseline, own = both if place is None else (times[place] for times in both)
        return baseline, own

    @property
    def why(self) -> str:
        """Why it has no numbers."""
        return self.reason or "no reason recorded"

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

    def conditions(self, hardware: bool = True, software: bool = True) -> str:
        """Hardware, engine, mode and weights, for titles."""
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


def read_records(files: Mapping[str, Iterable[str | Path]]) -> list[Record]:
    """The measurements among the files of an artifact; resolved models and artifacts are passed over.

    Raises:
        UserError: a missing, damaged or incomplete file, one of another measurement, or a second one for the same model,
            variant, KV cache and point.
    """
    records: dict[tuple[str, ...], Record] = {}
    for name in dict.fromkeys(INPUTS.values()):
        for path in files.get(name, ()):
            record = Record.read(path)
            if INPUTS.get(record.measure) != name:
                raise UserError(f"{path} is a {record.measure} record, but this artifact reads it as one of its {name}")
            key = (record.measure, record.model["name"], *record.case, record.what)
            if key in records:
                raise UserError(
                    f"{path} is a second measurement of {' '.join(filter(None, key))}; give one file for each"
                )
            records[key] = record
    return list(records.values())


def checked_records(entry: Mapping[str, Any], files: Mapping[str, Iterable[str | Path]]) -> list[Record]:
    """The records of an artifact that may stand in it, side by side.

    Raises:
        UserError: as `read_records`, `check_settings`, `check_comparable` and `check_checkpoints`.
    """
    records = read_records(files)
    check_settings(entry, records)
    check_comparable(records, entry["label"] if entry["source"] != "ours" else entry["name"])
    check_checkpoints(records, entry["name"])
    return records


def in_project(path: str | Path) -> str:
    """A path without the place of the project on this machine."""
    path = Path(path)
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def check_comparable(records: Iterable[Record], where: str) -> None:
    """Refuse to put serving records of one model side by side that were not made under the same conditions.

    Raises:
        UserError: two records differ in hardware, processor threads, vLLM, compilation, parallelism, chunk size, number
            format, quantization or in whether their weights are dummy ones; the sentence names both.
    """
    first: dict[tuple[str, str], tuple[Record, Any]] = {}
    for record in (record for record in records if record.measure in POINTS):
        for what, read in _CONDITIONS.items():
            if (value := read(record)) is None:
                continue
            other, expected = first.setdefault((record.model["name"], what), (record, value))
            if value != expected:
                raise UserError(
                    f"{where} would compare records that differ in {what}: {other.name} has {expected}, "
                    f"{record.name} has {value}; measure them again under the same conditions"
                )


_CONDITIONS: Mapping[str, Callable[[Record], Any]] = {
    "hardware": lambda record: record.machine,
    "processor threads": lambda record: None if record.gpus else record.settings.get("threads"),
    "vLLM version": lambda record: record.engine.get("vllm"),
    "compilation": lambda record: record.engine.get("compilation"),
    "tensor parallel size": lambda record: record.devices,
    "chunk of the chunked prefill": lambda record: record.settings.get("max_num_batched_tokens"),
    "most sequences in a batch": lambda record: record.settings.get("max_num_seqs"),
    "number format": lambda record: record.settings.get("dtype"),
    "weights": lambda record: "dummy weights" if record.dummy else "real weights",
    "quantization": lambda record: record.settings.get("quantization"),
}


def check_checkpoints(records: Iterable[Record], where: str) -> None:
    """Refuse to put speed beside the quality of another checkpoint.

    Raises:
        UserError: the rewiring differs, or, unless the weights are dummies, the model, its revision or the training.
    """
    scored: dict[tuple[str, str], Record] = {}
    records = list(records)
    for record in records:
        if record.measure in ("score", "fidelity"):
            scored.setdefault((record.model["name"], record.variant), record)
    for speed in (record for record in records if record.measure in POINTS):
        quality = scored.get((speed.model["name"], speed.variant))
        if quality is None:
            continue
        differing = [name for name in _SPEC if (speed.spec or {}).get(name) != (quality.spec or {}).get(name)]
        if not speed.dummy:
            differing += [name for name in _IDENTITY if speed.model[name] != quality.model[name]]
            differing += ["weights"] if speed.weights != quality.weights else []
        if differing:
            raise UserError(
                f"{where} would put the speed of {speed.model['name']} {speed.variant} beside the quality of another "
                f"checkpoint: they differ in {differing[0]}; measure both again"
            )


_IDENTITY = ("name", "kind", "id", "revision", "resolved")
_SPEC = ("num_hidden_layers", "num_key_value_layers", "key_value_group_size", "num_key_value_heads", "own_key_values")


def check_settings(entry: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Refuse records of other settings, or of another spec, than their entry; settings that both name are compared.

    Raises:
        UserError: the first record that differs, or that was computed in another number format than the others.
    """
    formats: dict[tuple[str, str], tuple[str, str]] = {}
    for record in records:
        shown, found = _shown(entry, record), {**record.settings, "spec": record.spec}
        if found["spec"] and shown.get("spec"):  # a record's has its reductions too
            found["spec"] = {key: found["spec"].get(key) for key in shown["spec"]}
        for key in shown:
            if key in found and found[key] != shown[key]:
                raise UserError(
                    f"{record.file} was measured with {key} {json.dumps(found[key])}, but {entry['name']} shows {key} "
                    f"{json.dumps(shown[key])}; delete it and run again, or set {key} back in the configuration"
                )
        if dtype := record.settings.get("dtype"):
            first, before = formats.setdefault((record.measure, record.model["name"]), (record.file, dtype))
            if dtype != before:
                raise UserError(
                    f"{entry['name']} would compare {first}, computed in {before}, with {record.file}, computed in {dtype}; "
                    "delete the records of one of the two machines and run again"
                )


def provenance(records: Sequence[Record]) -> list[str]:
    """One line on the records of an artifact: models, machines, engines, number, seeds and dates; none without records."""
    made = list(records)
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


def _shown(entry: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The settings that an entry has for one of its records."""
    shown = dict(entry["settings"].get(record.measure, {}))
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
