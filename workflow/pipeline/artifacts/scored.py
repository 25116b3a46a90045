"""Rows of the quality tables: what was measured of each case, averages over tasks, and the published numbers beside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.artifacts.columns import Column, measured
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.records import MISSING, Published, Record, read_published, read_records
from pipeline.artifacts.text import enumeration
from pipeline.statistics import ERRORS, wilson
from swiftkv.spec import SwiftKVSpec

Tasks = Mapping[str, Mapping[str, Any]]
FEW = 300  # questions below which an accuracy has its Wilson interval and comes after closeness to the teacher

CLOSENESS = {  # factor, header and format of each measure of closeness
    "kl": (1, "KL to teacher,\nnats a token", ".4f"),
    "answer_kl": (1, "KL of last\nanswers", ".4f"),
    "top1_agreement": (100, "Top-1\nagreement, %", ".2f"),
    "perplexity": (1, "Perplexity", ".2f"),
}


@dataclass(frozen=True)
class Row:
    """One case, a variant of a model with a KV-cache format, and all that was measured of it.

    Attributes:
        model: name, title and published name; the name is None where no model of this scale plays the part's role.
        part: title of the part of the table it belongs to; None where the table has none.
        spec: fields of its `SwiftKVSpec` with the exact reductions; None is the unchanged model.
        scores: records of all tasks, also those without a value.
        fidelity: the fidelity record, also one without a value.
        published: the row of the published table; empty where this very model has none.
    """

    model: Mapping[str, Any]
    part: str | None
    variant: str
    kv_cache: str
    spec: Mapping[str, Any] | None
    scores: Mapping[str, Record]
    fidelity: Record
    published: Published

    @property
    def known(self) -> bool:
        """Whether there is a model to speak of."""
        return self.model["name"] is not None

    @property
    def cache_reduction(self) -> float | None:
        """Of the baseline's bfloat16 cache; FP8 halves what is left (scales not counted, as in the paper)."""
        saved = self.spec["kv_cache_reduction"] if self.spec else 0.0
        return 1 - (1 - saved) / 2 if self.kv_cache == "fp8" and saved is not None else saved

    @property
    def prefill_reduction(self) -> float:
        """The share of layers a prompt skips."""
        return self.spec["prefill_reduction"] if self.spec else 0.0

    @property
    def closeness(self) -> Mapping[str, Any]:
        """The result of the fidelity measurement; empty without one."""
        return self.fidelity.result

    @property
    def head(self) -> dict[str, str | None]:
        """The first cells of its line."""
        part = {} if self.part is None else {"part": self.part}
        names = {"model": self.model["name"], "title": self.model["title"]}
        return {**names, **part, "variant": self.variant, "kv_cache": self.kv_cache}

    def score(self, task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Cells of one task: its score in percent or bits per byte, the questions, and the reason where there is none."""
        record = self.scores[task]
        score = measured(task, record.result, unit(settings))
        return {**score, f"{task}_n": record.value("n"), f"_{task}": record.why, **_interval(task, record, settings)}

    def average(self, tasks: Sequence[str]) -> dict[str, Any]:
        """Cells of the average: the mean over tasks in percent, its standard error, the tasks, and the reason for a gap.

        The tasks' questions are independent samples.
        """
        scores = [self.scores[task].result for task in tasks]
        cells = {"average": None, "average_stderr": None, "average_tasks": " ".join(tasks), "_average": None}
        if scores and all(scores):
            errors = [score["stderr"] for score in scores]
            cells["average"] = 100 * sum(score["value"] for score in scores) / len(scores)
            if None not in errors:
                cells["average_stderr"] = 100 * math.sqrt(sum(error**2 for error in errors)) / len(scores)
            return cells
        gaps = sorted(
            (record for record in self.scores.values() if not record.ok), key=lambda record: not record.exists
        )
        return cells | {"_average": gaps[0].why if gaps else "not measured"}

    def close(self, *, start: bool = False) -> dict[str, Any]:
        """Cells of every measure of closeness to the teacher; with `start` also from before training."""
        alone = "its prompts would be those of the teacher: it differs in answers alone"
        cells: dict[str, Any] = {
            "_fidelity": alone if self.closeness and "kl" not in self.closeness else self.fidelity.why
        }
        for measure, (scale, _, _) in CLOSENESS.items():
            cells |= measured(measure, self.closeness.get(measure), scale)
            if start:
                cells |= measured(f"start_{measure}", (self.closeness.get("start") or {}).get(measure), scale)
        return cells

    def missing(self, **others: Record) -> str | None:
        """The measurements without a number, the scores and others, each with its reason."""
        records = {**self.scores, **others}
        return "; ".join(f"{name}: {record.why}" for name, record in records.items() if not record.ok) or None

    def published_average(self, averaged: Sequence[str]) -> tuple[float | None, bool]:
        """The published average over these tasks (all if nothing was scored), and whether it is the printed one."""
        averaged = averaged or list(self.scores)
        if len(averaged) == len(self.scores) and self.published.get("average") is not None:
            return self.published["average"], True
        cells = [self.published.get(task) for task in averaged]
        return (None if not cells or None in cells else sum(cells) / len(cells)), False

    def in_print(self, value: float | None) -> str:
        """A published score with the digits its row has in print."""
        if value is None:
            return MISSING
        cells = [cell for name in (*self.scores, "average") if isinstance(cell := self.published.get(name), float)]
        digits = max((len(f"{cell:.6g}".partition(".")[2]) for cell in cells), default=2)
        return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Scored:
    """Rows whose scores stand together, and the tasks they are of."""

    rows: Sequence[Row]
    tasks: Tasks

    def results(self, task: str) -> list[Mapping[str, Any]]:
        """The scores of a task, those of rows that have one."""
        return [row.scores[task].result for row in self.rows if row.scores[task].ok]

    @property
    def accuracies(self) -> list[str]:
        """The tasks that are no bits per byte."""
        return [task for task, settings in self.tasks.items() if not in_bits(settings)]

    @cached_property
    def averaged(self) -> list[str]:
        """Accuracies that every row has which has any, so that the averages can be compared."""
        scored = [row for row in self.rows if any(row.scores[task].ok for task in self.accuracies)]
        return [task for task in self.accuracies if scored and all(row.scores[task].ok for row in scored)]

    @cached_property
    def digits(self) -> int:
        """Of an accuracy after the point: a second says nothing on a small subset, but stands beside the paper's two."""
        scores = [score for task in self.accuracies for score in self.results(task)]
        errors = [100 * score["stderr"] for score in scores if score["stderr"] is not None]
        return 1 if errors and max(errors) >= 1 and not any(row.published for row in self.rows) else 2

    @cached_property
    def few(self) -> bool:
        """Whether its accuracies are of too few questions to tell variants apart, and of no model with published ones."""
        asked = [score["n"] for task in self.accuracies for score in self.results(task)]
        return bool(asked) and min(asked) < FEW and not any(row.published for row in self.rows)

    def average(self, row: Row) -> dict[str, Any]:
        """Cells of a row's average, with whether it is no better than guessing."""
        cells = row.average(self.averaged)
        chances = [self.tasks[task].get("chance") for task in self.averaged]
        if cells["average"] is None or cells["average_stderr"] is None or None in chances:
            return cells
        guessed = 100 * sum(chances) / len(chances)
        return cells | {"_average_in_noise": cells["average"] - ERRORS * cells["average_stderr"] <= guessed}

    def columns(self) -> list[Column]:
        """A column a task, with its shots and questions."""
        columns = []
        for task, asked in self.tasks.items():
            sizes = sorted({result["n"] for result in self.results(task)})
            lines = [asked["title"], *(["bits a byte"] if in_bits(asked) else []), f"{asked['shots']}-shot"]
            lines += [f"n = {'/'.join(f'{size:,}' for size in sizes)}"] if sizes else []
            columns.append(Column("\n".join(lines), task, f".{3 if in_bits(asked) else self.digits}f", why=f"_{task}"))
        return columns

    def average_note(self, of: str = "") -> list[str]:
        """The tasks that an average is over; none where there is no average."""
        titles = [self.tasks[task]["title"] for task in self.averaged]
        return [f"Avg.{of}: mean over {enumeration(titles)}."] if titles else []


def outcomes(record: Record) -> list[float] | None:
    """Whether each question came out right, 1 or 0; None where it is bits or a probability, or the record does not say."""
    values = (record.value("questions") or {}).get("values")
    return values if values and set(values) <= {0.0, 1.0} else None


def _interval(task: str, record: Record, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of an accuracy: its Wilson interval in percent where few were asked, and whether it is no better than guessing."""
    if (right := outcomes(record)) is None:
        return {}
    low, high = wilson(sum(right), len(right))
    ends = {f"{task}_low": 100 * low, f"{task}_high": 100 * high} if len(right) < FEW else {}
    return ends | {f"_{task}_in_noise": settings.get("chance") is not None and low <= settings["chance"]}


def rows(entry: Entry, files: Files) -> list[Row]:
    """What an entry shows, in its order; a part that no model plays has a row without a model for each variant.

    Raises:
        UserError: a file that cannot be read, or of another kind.
    """
    scores = read_records(entry, files.get("scores", ()), "score")
    fidelity = read_records(entry, files.get("fidelity", ()), "fidelity")
    published = read_published(files.get("published", ()))
    models = {model["name"]: model for model in entry["models"]}
    nobody = {"name": None, "title": MISSING, "published": None}

    def row(part: str | None, model: Mapping[str, Any], variant: str, kv_cache: str) -> Row:
        name, tasks = model["name"], entry.get("tasks", ())
        if name is None:
            nothing = Record("score", model, variant, kv_cache, reason="no model of this scale plays this role")
            return Row(model, part, variant, kv_cache, None, dict.fromkeys(tasks, nothing), nothing, {})
        own = {task: scores.find(name, variant, kv_cache, task) for task in tasks}
        close = fidelity.find(name, variant, kv_cache)
        specs = [record.spec for record in (*own.values(), close) if record.exists]
        spec = specs[0] if specs else _exact(entry["specs"][name][variant])
        theirs = next((row for row in published if _is_of(row, model, part, variant, kv_cache)), {})
        return Row(model, part, variant, kv_cache, spec, own, close, theirs)

    parts = entry.get("parts") or [{"title": None, "models": list(models), "cases": entry["cases"]}]
    return [
        row(part["title"], model, *case)
        for part in parts
        for model in [models[name] for name in part["models"]] or [nobody]
        for case in part["cases"]
    ]


def _exact(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A spec with its exact reductions; the cache's only where the number of KV heads is the teacher's."""
    if fields is None:
        return None
    spec = SwiftKVSpec(**fields)
    saved = None if spec.num_key_value_heads else spec.kv_cache_reduction(1)
    return {**fields, "prefill_reduction": spec.prefill_reduction, "kv_cache_reduction": saved}


def _is_of(row: Published, model: Mapping[str, Any], part: str | None, variant: str, kv_cache: str) -> bool:
    """Whether a published row is of this case; a file without parts is of any."""
    case = (model["published"], variant, kv_cache)
    same = (row.get("model"), row.get("variant"), row.get("kv_cache") or "auto") == case
    return same and row.get("part") in (None, part)


def in_bits(task: Mapping[str, Any]) -> bool:
    """Whether a task of the config is measured in bits per byte: no share of questions, and less is better."""
    return task["metric"] == "bits_per_byte"


def unit(task: Mapping[str, Any]) -> float:
    """What a stored score is multiplied with: accuracies are fractions, shown in percent."""
    return 1.0 if in_bits(task) else 100.0


def closeness_columns() -> list[Column]:
    """A column a measure of closeness."""
    return [Column(header, name, form, why="_fidelity") for name, (_, header, form) in CLOSENESS.items()]
