"""Serving records: reading them, what may stand side by side, and how variants, machines and engines are named."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from swiftkv.artifacts.inputs import Record, json_argument, read_published
from swiftkv.artifacts.text import enumeration, variant_label
from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.spec import SwiftKVSpec

MISSING, OOM = "n/a", "OOM"
_FIELDS = ("measure", "point", "model", "title", "variant", "kv_cache", "status", "settings", "engine", "hardware")


class Case(NamedTuple):
    """One series or column: a variant with a KV-cache format (`auto` or `fp8`)."""

    variant: str
    kv_cache: str = "auto"


BASELINE = Case("baseline")
CLAIM_KEYS = ("artifact", "model", "quantity", "input_tokens")  # of resources/paper/serving_claims.csv


@dataclass(frozen=True)
class Serving:
    """What an artifact shows: serving records, and the order of its models, points and cases.

    Attributes:
        records: by (point, model, variant, kv_cache); a missing one stays visibly missing.
        published_names: the models' names in resources/paper, where they have one of their own.
        published: published numbers and claims, as `read_published` gives them.
    """

    records: Mapping[tuple[str, str, str, str], Record]
    models: Sequence[str]
    points: Sequence[str]
    cases: Sequence[Case]
    published_names: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)

    def find(self, point: str, model: str, case: Case) -> Record | None:
        """The record of one cell; None where nothing was measured."""
        return self.records.get((point, model, *case))

    def of(self, model: str, points: Sequence[str] | None = None) -> list[Record]:
        """Every record of a model at `points` (default: all), in the order of the artifact."""
        cells = [(point, case) for point in points or self.points for case in self.cases]
        return [record for point, case in cells if (record := self.find(point, model, case))]

    def title(self, model: str) -> str:
        """The model's printed name; its key where nothing of it was measured."""
        return next((record["title"] for record in self.of(model)), model)

    def label(self, case: Case) -> str:
        """A case in the paper's words where that is the same for all models, else the variant's name."""
        found = {case_label(record) for model in self.models for record in self.of(model) if case_of(record) == case}
        fallback = case.variant + (" (FP8 KV)" if case.kv_cache == "fp8" else "")
        return found.pop() if len(found) == 1 else fallback


def case_of(record: Record) -> Case:
    """The case a record was measured for."""
    return Case(record["variant"], record["kv_cache"])


def read_serving(files: Iterable[str | Path], benchmark: str) -> dict[tuple[str, str, str, str], Record]:
    """Serving records of one kind by (point, model, variant, kv_cache).

    Raises:
        UserError: a missing, damaged or incomplete file, another kind of measurement, or two files for one cell.
    """
    records: dict[tuple[str, str, str, str], Record] = {}
    for file in files:
        record = read_json(file)
        if not isinstance(record, dict) or (missing := [name for name in _FIELDS if name not in record]):
            lacking = f": it has no {', '.join(missing)}" if isinstance(record, dict) else ""
            raise UserError(f"{file} is not a serving record{lacking}; delete it and run again")
        if record["measure"] != benchmark:
            raise UserError(f"{file} is a {record['benchmark']} record, but this artifact is made of {benchmark} ones")
        if record["status"] not in ("ok", "oom") or (record["status"] == "ok" and not record.get("result")):
            raise UserError(f"{file} has status {record['status']!r} and no usable result; delete it and run again")
        key = (record["point"], record["model"], record["variant"], record["kv_cache"])
        if key in records:
            raise UserError(f"{file} is a second measurement of {' '.join(key)}; give one file for each")
        records[key] = record
    return records


def check_comparable(records: Sequence[Record], where: str) -> None:
    """Refuse to put records side by side that were not made under the same conditions.

    Raises:
        UserError: two records of `where` differ in hardware, vLLM, compilation, parallelism, chunk size, number format or
            in whether their weights are dummy ones; the sentence names both.
    """
    for what, read in _CONDITIONS.items():
        known = [(record, value) for record in records if (value := read(record)) is not None]
        for record, value in known[1:]:
            first, expected = known[0]
            if value != expected:
                raise UserError(
                    f"{where} would compare records that differ in {what}: {_name(first)} has {expected}, "
                    f"{_name(record)} has {value}; measure them again under the same conditions"
                )


def _name(record: Record) -> str:
    return "/".join(record[name] for name in ("point", "model", "variant", "kv_cache"))


def machine(record: Record) -> str:
    """The hardware a record was measured on: `4 × NVIDIA H100 80GB HBM3`, or the processor and its cores."""
    hardware = record["hardware"]
    if hardware.get("gpus"):
        names = "/".join(sorted(set(hardware["gpus"])))
        return f"{devices(record)} × {names}"
    processor = re.sub(r"\((R|TM|r|tm)\)| CPU\b| @ .*$", "", str(hardware.get("processor") or "unknown processor"))
    cores = hardware.get("cores")
    return " ".join(processor.split()) + (f", {cores} core{'s' if cores != 1 else ''}" if cores else "")


def devices(record: Record) -> int:
    """GPUs one server used (tensor parallel size); 1 on a processor."""
    return record["settings"].get("tensor_parallel_size") or 1


def _engine(name: str) -> Callable[[Record], Any]:
    return lambda record: (record["engine"] or {}).get(name)


def _dummy(record: Record) -> str:
    return "dummy weights" if record.get("weights") == "dummy" else "real weights"


_CONDITIONS: Mapping[str, Callable[[Record], Any]] = {
    "hardware": machine,
    "vLLM version": _engine("vllm"),
    "compilation": _engine("compilation"),
    "tensor parallel size": devices,
    "chunk of the chunked prefill": lambda record: record["settings"].get("max_num_batched_tokens"),
    "number format": lambda record: record["settings"].get("dtype"),
    "weights": _dummy,
    "quantization": lambda record: record["settings"].get("quantization"),
}


def conditions(records: Sequence[Record], engine: bool = True, hardware: bool = True) -> str:
    """Hardware, engine, mode and weights behind comparable records, for titles; empty without records."""
    if not records:
        return ""
    first = next((record for record in records if record["status"] == "ok"), records[0])
    parts = [machine(first)] if hardware else []
    if engine:
        values = [f"vLLM {version}" if (version := _engine("vllm")(first)) else None, _engine("compilation")(first)]
        parts += [str(value) for value in values if value]
        dummy = "dummy" if _dummy(first) == "dummy weights" else None
        quantization = first["settings"].get("quantization")
        if dummy or quantization:
            parts.append(" ".join(filter(None, [dummy, quantization and quantization.upper(), "weights"])))
    return ", ".join(parts)


def heading(serving: Serving) -> str:
    """The models, machines and engine of a whole artifact, for a table's title."""
    records = {model: serving.of(model) for model in serving.models}
    engines = {conditions(found, hardware=False) for found in records.values() if found}
    parts = []
    for model, found in records.items():
        own = conditions(found, engine=len(engines) > 1)
        parts.append(serving.title(model) + (f" ({own})" if own else ""))
    return ", ".join([enumeration(parts), *(engines if len(engines) == 1 else [])])


def case_label(record: Record) -> str:
    """A record's variant in the paper's words, with the exact reduction of the model at hand and its KV format."""
    label = "Merge-all-Layers" if record.get("merge_all_layers") else variant_label(described(record.get("spec")))
    return label + (" (FP8 KV)" if record["kv_cache"] == "fp8" else "")


def described(spec: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A record's spec, which holds the fields of `SwiftKVSpec`, with its exact prefill reduction."""
    return None if spec is None else {**spec, "prefill_reduction": SwiftKVSpec(**spec).prefill_reduction}


def throughput(record: Record | None) -> float | None:
    """Input and output tokens a second; None where not measured or out of memory."""
    return record["result"]["tokens_per_second"] if record and record["status"] == "ok" else None


def absent(record: Record | None) -> str:
    """What stands in a cell without a value: `n/a` (not measured) or `OOM`."""
    return MISSING if record is None else OOM


def limit(record: Record | None, name: str = "request_speedup_limit") -> float | None:
    """The speed-up over the baseline that the FLOP count allows; None where nothing is known."""
    return ((record or {}).get("cost") or {}).get(name)


def ratio(value: float | None, base: float | None) -> float | None:
    """`value / base` where there are both."""
    return None if value is None or not base else value / base


def on_paper_hardware(records: Sequence[Record], gpus: float | None = None) -> bool:
    """Whether all records ran on H100 GPUs, as the paper's and the blog's did, `gpus` of them where that is given."""
    return bool(records) and all(
        record["hardware"].get("gpus")
        and all("H100" in name for name in record["hardware"]["gpus"])
        and (gpus is None or devices(record) == gpus)
        for record in records
    )


def length_label(tokens: float) -> str:
    """Thousands of tokens as the paper writes them: 2000 is 2K, 4096 is 4K, 512 is 512."""
    for thousand in (1000, 1024):
        if tokens >= thousand and tokens % thousand == 0:
            return f"{tokens / thousand:g}K"
    return f"{tokens:,.0f}"


def parser(description: str | None, outputs: Sequence[str]) -> argparse.ArgumentParser:
    """The command line that the programs of all serving artifacts share; `outputs` are kinds of files."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--records", type=Path, nargs="*", default=[], help="serving records")
    arguments.add_argument("--models", required=True, help="JSON object, in order: model -> its published name")
    arguments.add_argument("--points", required=True, help="JSON list of the serving points, in order")
    arguments.add_argument("--cases", required=True, help="JSON list of [variant, KV-cache format], in order")
    arguments.add_argument("--published", type=Path, nargs="*", default=[], help="CSV files with published numbers")
    for kind in outputs:
        arguments.add_argument(f"--output-{kind}", type=Path, required=True)
    return arguments


def serving_of(arguments: argparse.Namespace, benchmark: str, published_keys: tuple[str, ...] = ()) -> Serving:
    """What the command line of `parser` describes.

    Args:
        benchmark: the kind of records.
        published_keys: columns that tell the rows of the published files apart.

    Raises:
        UserError: as `read_serving`, or no record at all.
    """
    records = read_serving(arguments.records, benchmark)
    if not records:
        raise UserError("a serving artifact needs at least one record")
    models = json_argument(arguments.models)
    cases = [Case(*case) for case in json_argument(arguments.cases)]
    published = read_published(arguments.published, None, published_keys)
    return Serving(records, list(models), json_argument(arguments.points), cases, models, published)
