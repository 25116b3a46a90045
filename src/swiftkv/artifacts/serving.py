"""Serving records: what may stand side by side, and how variants, machines and engines are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import Published, Record, Records, published_values, read_published, read_records
from swiftkv.artifacts.text import enumeration, variant_label
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec


class Case(NamedTuple):
    """One series or column: a variant with a KV-cache format (`auto` or `fp8`)."""

    variant: str
    kv_cache: str = "auto"


BASELINE = Case("baseline")


@dataclass(frozen=True)
class Serving:
    """What a serving artifact shows: its resolved entry and its records; a missing record stays visibly missing."""

    entry: Entry
    records: Records

    @property
    def models(self) -> list[str]:
        """Keys of the models, in the order of the entry."""
        return [model["name"] for model in self.entry["models"]]

    @property
    def points(self) -> list[str]:
        """Names of the points, in the order of the entry."""
        return list(self.entry["points"])

    @property
    def cases(self) -> list[Case]:
        """Variants with their KV-cache formats, in the order of the entry."""
        return [Case(*case) for case in self.entry["cases"]]

    def find(self, point: str, model: str, case: Case) -> Record:
        """The record of one cell; a missing one where nothing was measured."""
        return self.records.find(model, *case, point)

    def of(self, model: str, points: Sequence[str] | None = None) -> list[Record]:
        """Every record of a model at `points` (default: all), in the order of the entry."""
        cells = [(point, case) for point in points or self.points for case in self.cases]
        return [record for point, case in cells if (record := self.find(point, model, case)).exists]

    def title(self, model: str) -> str:
        """The model's printed name: what ran, or what the entry says where nothing did."""
        expected = next(each["title"] for each in self.entry["models"] if each["name"] == model)
        return next((record.model["title"] for record in self.of(model)), expected)

    def published_name(self, model: str) -> str:
        """The model's name in resources/paper."""
        return next(each["published"] for each in self.entry["models"] if each["name"] == model)

    def label(self, case: Case, kv_format: bool = True) -> str:
        """A case in the paper's words where that is the same for all models, else the variant's name.

        Where two variants have the same words, as two trainings of one spec have, their names tell them apart.

        Args:
            kv_format: whether to say that the KV cache is FP8, where it is.
        """
        words = self._words(case)
        if any(other.variant != case.variant and self._words(other) == words for other in self.cases):
            words += f" ({case.variant})"
        return words + (" (FP8 KV)" if kv_format and case.kv_cache == "fp8" else "")

    def _words(self, case: Case) -> str:
        made = [record for model in self.models for record in self.of(model) if record.case == case]
        found = {variant_of(record) for record in made}
        if not made:
            specs = [self.entry["specs"].get(model, {}).get(case.variant) for model in self.models]
            found = {variant_label(described(spec)) for spec in specs if spec}
        fallback = "Baseline" if case.variant == BASELINE.variant else case.variant
        return found.pop() if len(found) == 1 else fallback

    def absences(self) -> list[str]:
        """For a figure: why cells have no value, one line a reason with the models and variants it is about."""
        found: dict[str, list[str]] = {}
        for model in self.models:
            for case in self.cases:
                for point in self.points:
                    record = self.find(point, model, case)
                    if not record.ok:
                        name = f"{self.title(model)}, " if len(self.models) > 1 else ""
                        name += f"{self.label(case)}: {record.blank}"
                        names = found.setdefault(record.why, [])
                        names += [name] if name not in names else []
        return [f"{'; '.join(names)} ({why})" for why, names in found.items()]


def read_serving(entry: Entry, files: Files, measure: str, *, apart: bool = False) -> Serving:
    """An entry with its serving records, `files["serving"]`, which may stand side by side for each model.

    Args:
        apart: only those of one point have to be alike: points differ in how the engine runs.

    Raises:
        UserError: a missing, damaged or incomplete file, another kind of measurement, two files for one cell, or records
            of one model made under different conditions.
    """
    serving = Serving(entry, read_records(entry, files.get("serving", ()), measure))
    for model in serving.models:
        for points in [[point] for point in serving.points] if apart else [serving.points]:
            name = entry["label"] if entry["source"] != "ours" else entry["name"]
            check_comparable(serving.of(model, points), name)
    return serving


def read_claims(serving: Serving, files: Files) -> list[Published]:
    """Rows of values.csv that may stand beside an artifact: of the paper's models, on as many H100 GPUs."""
    found = []
    for row in published_values(read_published(files.get("published", [])), serving.entry["name"]):
        model = next((own for own in serving.models if serving.published_name(own) == row["model"]), None)
        if model and on_paper_hardware(serving.of(model), row.get("gpus")):
            found.append(row)
    return found


def with_claims(data: pd.DataFrame, claims: Sequence[Published]) -> pd.DataFrame:
    """The plotted data, with the published statements as rows of their own where they may stand beside it.

    The column `row` tells them apart: measured or published.
    """
    data = data.assign(row="measured")
    if not claims:
        return data
    names = ("model", "variant", "input_tokens", "quantity", "low", "high", "text", "source")
    rows = [{"row": "published", **{name: claim.get(name) for name in names}} for claim in claims]
    return pd.concat([data, pd.DataFrame(rows)], ignore_index=True)


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
                    f"{where} would compare records that differ in {what}: {first.name} has {expected}, "
                    f"{record.name} has {value}; measure them again under the same conditions"
                )


_CONDITIONS: Mapping[str, Callable[[Record], Any]] = {
    "hardware": lambda record: record.machine,
    "vLLM version": lambda record: record.engine.get("vllm"),
    "compilation": lambda record: record.engine.get("compilation"),
    "prefix caching": lambda record: record.engine.get("prefix_caching"),
    "tensor parallel size": lambda record: record.devices,
    "chunk of the chunked prefill": lambda record: record.settings.get("max_num_batched_tokens"),
    "most sequences in a batch": lambda record: record.settings.get("max_num_seqs"),
    "number format": lambda record: record.settings.get("dtype"),
    "weights": lambda record: "dummy weights" if record.dummy else "real weights",
    "quantization": lambda record: record.settings.get("quantization"),
}


def conditions(records: Sequence[Record], hardware: bool = True, software: bool = True) -> str:
    """Hardware, engine, mode and weights behind comparable records, for titles; empty without records."""
    first = next((record for record in records if record.ok), next(iter(records), None))
    return first.conditions(hardware, software) if first else ""


def heading(serving: Serving) -> str:
    """A table's title: the models that ran, their machines and engine, and what is shown of them."""
    records = {model: serving.of(model) for model in serving.models}
    engines = {conditions(found, hardware=False) for found in records.values() if found}
    parts = []
    for model, found in records.items():
        own = conditions(found, software=len(engines) > 1)
        parts.append(serving.title(model) + (f" ({own})" if own else ""))
    ran = ", ".join([enumeration(parts), *(engines if len(engines) == 1 else [])])
    return f"{ran}: {serving.entry['title']} ({serving.entry['label']})"


def captions(serving: Serving) -> tuple[list[str], dict[str, list[str]]]:
    """A figure's headline, and the lines above each model's panel where there are several.

    What all models share (machine, engine) stands in the headline, the rest above the panels.
    """
    title = f"{serving.entry['title']} ({serving.entry['label']})"
    if len(serving.models) == 1:
        model = serving.models[0]
        return [f"{serving.title(model)}: {title}", conditions(serving.of(model))], {}
    groups = {model: serving.of(model) for model in serving.models}
    machines = {conditions(found, software=False) for found in groups.values() if found}
    engines = {conditions(found, hardware=False) for found in groups.values() if found}
    shared = [next(iter(found)) for found in (machines, engines) if len(found) == 1]
    above = {}
    for model, found in groups.items():
        own = [conditions(found, software=False)] if len(machines) > 1 else []
        own += [conditions(found, hardware=False)] if len(engines) > 1 else []
        above[model] = [serving.title(model), *filter(None, own)]
    return [title[0].upper() + title[1:], ", ".join(shared)], above


def variant_of(record: Record) -> str:
    """A record's variant in the paper's words, with the exact reduction of the model at hand."""
    merged, plugin = record.settings.get("merge_all_layers"), record.engine.get("plugin")
    label = "Merge-all-Layers" if merged else variant_label(described(record.spec))
    return label + (f", {plugin}" if plugin and plugin != "swiftkv" else "")


def described(spec: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The fields of a `SwiftKVSpec` with its exact prefill reduction, which records have and entries have not."""
    if spec is None or "prefill_reduction" in spec:
        return spec
    return {**spec, "prefill_reduction": SwiftKVSpec(**spec).prefill_reduction}


def ratio(value: float | None, base: float | None) -> float | None:
    """`value / base` where there are both."""
    return None if value is None or not base else value / base


def on_paper_hardware(records: Sequence[Record], count: float | None = None) -> bool:
    """Whether all records ran on H100 GPUs, as the paper's and the blog's did, `count` of them where that is given."""
    return bool(records) and all(
        record.gpus and all("H100" in name for name in record.gpus) and (count is None or record.devices == count)
        for record in records
    )


def length_label(tokens: float) -> str:
    """Thousands of tokens as the paper writes them: 2000 is 2K, 4096 is 4K, 512 is 512."""
    for thousand in (1000, 1024):
        if tokens >= thousand and tokens % thousand == 0:
            return f"{tokens / thousand:g}K"
    return f"{tokens:,.0f}"
