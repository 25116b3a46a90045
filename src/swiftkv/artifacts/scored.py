"""Rows of the quality tables: what was measured of each case, averages over tasks, and the published numbers beside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swiftkv.artifacts.columns import Column, measured
from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import MISSING, Record, Records, read_published, read_records
from swiftkv.artifacts.text import enumeration
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

Tasks = Mapping[str, Mapping[str, Any]]

CLOSENESS = {  # factor, header and format of each measure of closeness
    "kl": (1, "KL to teacher,\nnats a token", ".4f"),
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
        scores: score records by task, also those without a value.
        fidelity: the fidelity record, also one without a value.
        published: the row of the published table, where this very model has one.
        absent: why it has no measurement at all, where that is known.
    """

    model: Mapping[str, Any]
    part: str | None
    variant: str
    kv_cache: str
    spec: Mapping[str, Any] | None
    scores: Mapping[str, Record]
    fidelity: Record | None
    published: Mapping[str, Any] | None
    absent: str | None

    @property
    def known(self) -> bool:
        """Whether there is a model to speak of."""
        return self.model["name"] is not None

    @property
    def cache_reduction(self) -> float | None:
        """Of the baseline's bfloat16 cache; FP8 halves what is left (scales not counted, as in the paper)."""
        saved = self.spec["kv_cache_reduction"] if self.spec else 0.0
        if saved is None:
            return None
        return 1 - (1 - saved) / 2 if self.kv_cache == "fp8" else saved

    @property
    def prefill_reduction(self) -> float:
        """The share of layers a prompt skips."""
        return self.spec["prefill_reduction"] if self.spec else 0.0

    def score(self, task: str) -> Record | None:
        """The record of a task that has a value."""
        record = self.scores.get(task)
        return record if record and record["status"] == "ok" else None

    @property
    def closeness(self) -> Mapping[str, Any]:
        """The result of the fidelity measurement; empty without one."""
        return self.fidelity["result"] if self.fidelity and self.fidelity["status"] == "ok" else {}

    def reason(self, record: Record | None) -> str:
        """Why a cell has no value."""
        return (record or {}).get("reason") or self.absent or "not measured"

    @property
    def head(self) -> dict[str, str | None]:
        """The first cells of its line."""
        part = {} if self.part is None else {"part": self.part}
        names = {"model": self.model["name"], "title": self.model["title"]}
        return {**names, **part, "variant": self.variant, "kv_cache": self.kv_cache}


def one_form(entry: Entry) -> None:
    """Refuse an entry that names both parts and variants, or neither.

    Raises:
        UserError: it does.
    """
    if ("parts" in entry) == ("cases" in entry):
        raise UserError(f"artifacts.{entry['name']} takes either models and variants, or parts")


def rows(entry: Entry, files: Files) -> list[Row]:
    """What an entry shows, in its order; a part that no model plays has a row without a model for each variant.

    Raises:
        UserError: a file that cannot be read, or of another kind.
    """
    scores = read_records(files.get("scores", ()), "score")
    fidelity = read_records(files.get("fidelity", ()), "fidelity")
    published = read_published(files.get("published", ()))
    return [
        _row(entry, scores, fidelity, published, part, model, *case)
        for part, models, cases in _scopes(entry)
        for model in models
        for case in cases
    ]


def _scopes(entry: Entry) -> Iterable[tuple[str | None, list[Mapping[str, Any]], list[list[str]]]]:
    if "parts" not in entry:
        return [(None, entry["models"], entry["cases"])]
    described = {model["name"]: model for model in entry["models"]}
    nobody = {"name": None, "title": MISSING, "published": None}
    return [
        (part["title"], [described[name] for name in part["models"]] or [nobody], part["cases"])
        for part in entry["parts"]
    ]


def _row(
    entry: Entry,
    scores: Records,
    fidelity: Records,
    published: Sequence[Record],
    part: str | None,
    model: Mapping[str, Any],
    variant: str,
    kv_cache: str,
) -> Row:
    name = model["name"]
    if name is None:
        absent = "no model of this scale plays this role"
        return Row(model, part, variant, kv_cache, None, {}, None, None, absent)
    own = {task: record for task in entry.get("tasks", {}) if (record := scores.find(name, variant, kv_cache, task))}
    close = fidelity.find(name, variant, kv_cache)
    measured = [*own.values(), *([close] if close else [])]
    spec = measured[0]["spec"] if measured else _exact(entry["specs"][name][variant])
    theirs = next((row for row in published if _is_of(row, model, part, variant, kv_cache)), None)
    return Row(model, part, variant, kv_cache, spec, own, close, theirs, entry["unmeasured"].get(name, {}).get(variant))


def _exact(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A spec with its exact reductions; the cache's only where the number of KV heads is the teacher's."""
    if fields is None:
        return None
    spec = SwiftKVSpec(**fields)
    saved = None if spec.num_key_value_heads else spec.kv_cache_reduction(1)
    return {**fields, "prefill_reduction": spec.prefill_reduction, "kv_cache_reduction": saved}


def _is_of(row: Record, model: Mapping[str, Any], part: str | None, variant: str, kv_cache: str) -> bool:
    """Whether a published row is of this case; a file without parts is of any."""
    case = (model["published"], variant, kv_cache)
    same = (row.get("model"), row.get("variant"), row.get("kv_cache") or "auto") == case
    return same and row.get("part") in (None, part)


def averaged_tasks(found: Sequence[Row], tasks: Iterable[str]) -> list[str]:
    """Tasks scored in every row that has any score, so that the averages can be compared."""
    tasks = list(tasks)
    scored = [row for row in found if any(row.score(task) for task in tasks)]
    return [task for task in tasks if scored and all(row.score(task) for row in scored)]


def average(row: Row, averaged: Sequence[str]) -> tuple[float | None, float | None]:
    """Mean over tasks in percent, and its standard error (the tasks' questions are independent samples)."""
    results = [record["result"] for task in averaged if (record := row.score(task))]
    if not results or len(results) < len(averaged):
        return None, None
    mean = 100 * sum(result["value"] for result in results) / len(results)
    if any(result["stderr"] is None for result in results):
        return mean, None
    return mean, 100 * math.sqrt(sum(result["stderr"] ** 2 for result in results)) / len(results)


def in_bits(task: Mapping[str, Any]) -> bool:
    """Whether a task of the config is measured in bits per byte: no share of questions, and less is better."""
    return task["metric"] == "bits_per_byte"


def unit(task: Mapping[str, Any]) -> float:
    """What a stored score is multiplied with: accuracies are fractions, shown in percent."""
    return 1.0 if in_bits(task) else 100.0


def score_cells(row: Row, task: str, tasks: Tasks) -> dict[str, Any]:
    """Cells of one task: its score in percent or bits per byte, the questions, and the reason where there is none."""
    result = (row.score(task) or {}).get("result")
    gap = None if result else row.reason(row.scores.get(task))
    return {**measured(task, result, unit(tasks[task])), f"{task}_n": result and result["n"], f"_{task}": gap}


def average_cells(row: Row, averaged: Sequence[str]) -> dict[str, Any]:
    """Cells of the average: its value and error in percent, the tasks it is over, and the reason where there is none."""
    mean, error = average(row, averaged)
    unscored = next((record for record in row.scores.values() if record["status"] != "ok"), None)
    gap = None if mean is not None else row.reason(unscored)
    return {"average": mean, "average_stderr": error, "average_tasks": " ".join(averaged), "_average": gap}


def closeness_cells(row: Row, *, start: bool = False) -> dict[str, float | None]:
    """Cells of every measure of closeness to the teacher; with `start` also from before training."""
    cells = {}
    for measure, (scale, _, _) in CLOSENESS.items():
        cells |= measured(measure, row.closeness.get(measure), scale)
        cells |= measured(f"start_{measure}", (row.closeness.get("start") or {}).get(measure), scale) if start else {}
    return cells


def missing(row: Row, tasks: Iterable[str]) -> list[str]:
    """The tasks without a score, each with its reason."""
    return [f"{task}: {row.reason(row.scores.get(task))}" for task in tasks if not row.score(task)]


def task_columns(found: Sequence[Row], tasks: Tasks, digits: int) -> list[Column]:
    """A column a task, with its shots and questions."""
    columns = []
    for task, asked in tasks.items():
        sizes = sorted({record["result"]["n"] for row in found if (record := row.score(task))})
        lines = [asked["title"], *(["bits a byte"] if in_bits(asked) else []), f"{asked['shots']}-shot"]
        lines += [f"n = {'/'.join(f'{size:,}' for size in sizes)}"] if sizes else []
        columns.append(Column("\n".join(lines), task, f".{3 if in_bits(asked) else digits}f", why=f"_{task}"))
    return columns


def published_average(row: Row, tasks: Sequence[str], averaged: Sequence[str]) -> tuple[float | None, bool]:
    """The published average over `averaged` tasks (all of them if nothing was scored), and whether it is the printed one."""
    theirs, averaged = row.published or {}, averaged or tasks
    if len(averaged) == len(tasks) and theirs.get("average") is not None:
        return theirs["average"], True
    cells = [theirs.get(task) for task in averaged]
    if not cells or any(cell is None for cell in cells):
        return None, False
    return sum(cells) / len(cells), False


def published_checkpoints(found: Sequence[Row]) -> dict[str, str]:
    """Which checkpoint stands for each variant that others trained, as its records name it."""
    return {
        row.variant: f"{origin['id']} ({origin['resolved']})"
        for row in found
        for record in (*row.scores.values(), row.fidelity)
        if record and (origin := record.get("checkpoint"))
    }


def decimals(found: Sequence[Row], tasks: Iterable[str]) -> int:
    """Digits of a score after the point: a second one says nothing on a small subset, but stands beside the paper's two."""
    results = [record["result"] for row in found for task in tasks if (record := row.score(task))]
    errors = [100 * result["stderr"] for result in results if result["stderr"] is not None]
    return 1 if errors and max(errors) >= 1 and not any(row.published for row in found) else 2


def percent_published(value: float | None, theirs: Mapping[str, Any], tasks: Iterable[str]) -> str:
    """A published score with the digits its row has in print."""
    if value is None:
        return MISSING
    cells = [cell for name in (*tasks, "average") if isinstance(cell := theirs.get(name), float)]
    digits = max((len(f"{cell:.6g}".partition(".")[2]) for cell in cells), default=2)
    return f"{value:.{digits}f}"


def average_note(averaged: Sequence[str], tasks: Tasks, of: str = "") -> str | None:
    """Which tasks an average is over; None where it is over none."""
    if not averaged:
        return None
    left_out = [tasks[task]["title"] for task in tasks if task not in averaged]
    text = f"Avg.{of} is the mean over {enumeration([tasks[task]['title'] for task in averaged])}"
    return text + (f"; without {enumeration(left_out)}." if left_out else ".")


def subsets_note(found: Sequence[Row], tasks: Tasks) -> str:
    """How many of a task's questions were asked."""
    where = "Prompts, metrics and data sources stand in the score files, those of the paper's tasks also in Table B.1."
    records = {task: record for task in tasks for row in found if (record := row.score(task))}
    if not records:
        return "No task was scored."
    parts, seeds = [], set()
    for task, record in records.items():
        result = record["result"]
        if result["n"] < result["n_total"]:
            parts.append(f"{tasks[task]['title']} {result['n']:,} of {result['n_total']:,}")
            seeds.add(str(record["settings"]["seed"]))
    made = backends_note([record for row in found for record in row.scores.values()], tasks)
    where = " ".join(filter(None, [where, made]))
    if not parts:
        return f"Every task is scored on all of its questions. {where}"
    return (
        f"Scored on random subsets (seed {', '.join(sorted(seeds))}), so not comparable with full-set results: "
        f"{enumeration(parts)} questions. {where}"
    )


def backends_note(scores: Iterable[Record], tasks: Tasks) -> str | None:
    """Which answers vLLM generated, and of the same tasks which it did not; None where it generated none."""
    vllm: dict[str, None] = {}
    others: dict[str, dict[str, None]] = {}
    for record in scores:
        if record["status"] != "ok":
            continue
        task = record["settings"]["task"]
        if record["settings"].get("backend") == "vllm":
            vllm[tasks[task]["title"]] = None
        else:
            case = record["variant"] + ("/fp8" if record["kv_cache"] == "fp8" else "")
            others.setdefault(tasks[task]["title"], {})[f"{record['model']['title']} {case}"] = None
    if not vllm:
        return None
    apart = list(dict.fromkeys(case for task in vllm for case in others.get(task, ())))
    text = f"The answers of {enumeration(list(vllm))} were generated by vLLM with fast prefill"
    text += f", but for {enumeration(apart)} by transformers" if apart else ""
    return f"{text}; all other scores are transformers'." if set(others) - set(vllm) else f"{text}."
