"""Serving records: what may stand side by side, and how variants, machines and engines are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts.drawing import Look, look
from pipeline.artifacts.kind import ArtifactKind, Entry, Files
from pipeline.artifacts.records import Published, Record, Records, read_records, read_statements
from pipeline.artifacts.text import enumeration, variant_label
from pipeline.statistics import mean_of_turns, quadrature
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

    def cells(self, model: str | None = None, point: str | None = None) -> list[Cell]:
        """Every cell in the order of the entry, of one model or point where it is named."""
        models, points = (self.models if model is None else [model]), (self.points if point is None else [point])
        return [Cell(self, *place) for place in itertools.product(models, points, self.cases)]

    def of(self, model: str, point: str | None = None) -> list[Record]:
        """Every record of a model, in the order of the entry, at one point where it is named."""
        return [cell.record for cell in self.cells(model, point) if cell.record.exists]

    def model(self, name: str) -> Mapping[str, str]:
        """What the entry says of a model: name, title and published name, which is its own in resources/paper."""
        return next(model for model in self.entry["models"] if model["name"] == name)

    def title(self, model: str) -> str:
        """The model's printed name."""
        return self.model(model)["title"]

    def look(self, case: Case, second: bool = False) -> Look:
        """How a case is drawn."""
        return look(*case, second)

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

    @property
    def notes(self) -> list[str]:
        """For a figure: what the entry says, and why cells have no value, one line a reason."""
        blanks: dict[str, dict[str, None]] = {}
        for model, case, point in itertools.product(self.models, self.cases, self.points):
            if not (record := self.find(point, model, case)).ok:
                name = f"{self.title(model)}, " if len(self.models) > 1 else ""
                blanks.setdefault(record.why, {})[f"{name}{self.label(case)}: {record.blank}"] = None
        return [*self.entry.get("notes", []), *(f"{'; '.join(names)} ({why})" for why, names in blanks.items())]

    def claims(self, files: Files) -> list[Published]:
        """Rows of values.csv that may stand beside an artifact: of the paper's models, on as many H100 GPUs."""
        models = {model["published"]: model["name"] for model in self.entry["models"]}
        rows = [row for row in read_statements(self.entry, files) if row["model"] in models]
        return [row for row in rows if on_paper_hardware(self.of(models[row["model"]]), row.get("gpus"))]

    def with_claims(self, data: pd.DataFrame, claims: Sequence[Published]) -> pd.DataFrame:
        """The plotted data, with the published statements as rows of their own where they may stand beside it.

        The column `row` tells them apart: measured and published.
        """
        data = data.assign(row="measured")
        if not claims:
            return data
        names = ("model", "variant", "input_tokens", "quantity", "low", "high", "text", "source")
        rows = [{"row": "published", **{name: claim.get(name) for name in names}} for claim in claims]
        return pd.concat([data, pd.DataFrame(rows)], ignore_index=True)

    @property
    def heading(self) -> str:
        """A table's title: the models that ran, their machines and engine, and what is shown of them."""
        engine, differ = self._shared(hardware=False)
        parts = []
        for model in self.models:
            own = conditions(self.of(model), software=bool(differ))
            parts.append(self.title(model) + (f" ({own})" if own else ""))
        ran = ", ".join(filter(None, [enumeration(parts), engine]))
        return f"{ran}: {self.entry['title']} ({self.entry['label']})"

    def captions(self) -> tuple[list[str], dict[str, list[str]]]:
        """A figure's headline, and the lines above each model's panel where there are several.

        What all models share (machine, engine) stands in the headline, the rest above the panels.
        """
        title = f"{self.entry['title']} ({self.entry['label']})"
        if len(self.models) == 1:
            model = self.models[0]
            return [f"{self.title(model)}: {title}", conditions(self.of(model))], {}
        parts = [self._shared(software=False), self._shared(hardware=False)]
        above = {model: [self.title(model)] for model in self.models}
        for model, lines in above.items():
            lines += filter(None, [differ.get(model) for _, differ in parts])
        shared = ", ".join(shared for shared, _ in parts if shared)
        return [title[0].upper() + title[1:], shared], above

    def _shared(self, **part: bool) -> tuple[str, dict[str, str]]:
        """The hardware or software that all models with records ran on, or else that of each."""
        ran = {model: conditions(records, **part) for model in self.models if (records := self.of(model))}
        values = set(ran.values())
        return (values.pop(), {}) if len(values) == 1 else ("", ran)


@dataclass(frozen=True)
class Cell:
    """One model at one point in one case."""

    serving: Serving
    model: str
    point: str
    case: Case

    @property
    def record(self) -> Record:
        """What was measured, or a missing record."""
        return self.serving.find(self.point, self.model, self.case)

    @property
    def base(self) -> Record:
        """The record of the baseline at the same point."""
        return self.serving.find(self.point, self.model, BASELINE)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the point asks for."""
        return self.serving.entry["points"][self.point]

    @property
    def speedup(self) -> float | None:
        """Throughput over the baseline's: the mean over turns where they were measured in turns, else of two records."""
        if turns := self.record.speedups():
            return mean_of_turns(turns)[0]
        return ratio(self.record.throughput, self.base.throughput)

    @property
    def speedup_stderr(self) -> float | None:
        """Its standard error: that of the mean over turns, else of two records that were both measured repeatedly."""
        if turns := self.record.speedups():
            return mean_of_turns(turns)[1]
        both = None if self.case == BASELINE else quadrature(self.record.scatter, self.base.scatter)
        return both and self.speedup * both

    @property
    def speedups(self) -> dict[str, float | None]:
        """The speed-up with its error, and beside its limit by FLOPs, as columns."""
        speedup, limit = self.speedup, self.record.limit()
        return {
            "speedup": speedup,
            "speedup_stderr": self.speedup_stderr,
            "speedup_limit": limit,
            "fraction_of_limit": ratio(speedup, limit),
        }

    @property
    def times(self) -> str:
        """The speed-up in words."""
        error = self.speedup_stderr
        return f"{self.speedup:.2f}×" + (f" ± {error:.2f}" if error is not None else "")

    @property
    def place(self) -> dict[str, Any]:
        """The first columns of every CSV."""
        return {"model": self.model, "title": self.serving.title(self.model), "point": self.point}

    @property
    def variant(self) -> dict[str, Any]:
        """The columns of a CSV that name the case."""
        return self.case._asdict()

    def state(self, value: Any) -> dict[str, Any]:
        """The columns of a CSV that say whether there is a `value`, and else why not."""
        return {"status": self.record.status, "reason": None if value else self.record.why}

    def head(self, value: Any) -> dict[str, Any]:
        """What this is a cell of, and whether there is a `value`."""
        return self.place | self.variant | self.state(value)


def serving_kind(form: str, make: Callable[[Entry, Files], Any], **more: Any) -> ArtifactKind:
    """A kind that needs the serving measurement of every row; `more` are further fields of the `ArtifactKind`."""
    scope = ("models", "variants", "points")
    return ArtifactKind(form, scope, make=make, **({"needs": ("serving",)} | more))


def read_serving(entry: Entry, files: Files, measure: str) -> Serving:
    """An entry with its serving records, `files["serving"]`, which may stand side by side for each model.

    Raises:
        UserError: a missing, damaged or incomplete file, another kind of measurement, two files for one cell, or records
            of one model made under different conditions.
    """
    serving = Serving(entry, read_records(entry, files.get("serving", ()), measure))
    for model in serving.models:
        check_comparable(serving.of(model), entry["label"] if entry["source"] != "ours" else entry["name"])
    return serving


def check_comparable(records: Sequence[Record], where: str) -> None:
    """Refuse to put records side by side that were not made under the same conditions.

    Raises:
        UserError: two records of `where` differ in hardware, processor threads, vLLM, compilation, parallelism, chunk size,
            number format or in whether their weights are dummy ones; the sentence names both.
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


def conditions(records: Sequence[Record], hardware: bool = True, software: bool = True) -> str:
    """Hardware, engine, mode and weights behind comparable records, for titles; empty without records."""
    first = next((record for record in records if record.ok), next(iter(records), None))
    return first.conditions(hardware, software) if first else ""


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


def rate_cells(rate: Mapping[str, Any], metrics: Iterable[str], statistics: Sequence[str]) -> dict[str, float | None]:
    """The columns of a request rate's times, such as `ttft_median_ms`."""
    return {f"{m}_{s}_ms": rate.get(f"{m}_ms", {}).get(s) for m in metrics for s in statistics}


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
