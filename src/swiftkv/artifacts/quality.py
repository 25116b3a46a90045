"""Tables 2 and 7: benchmark scores and closeness to the teacher, by variant and KV cache dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from swiftkv.artifacts.inputs import Record, only_model
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, mean_and_error, percent
from swiftkv.errors import UserError

Scores = Mapping[tuple[str, str, str], Record]
Fidelity = Mapping[tuple[str, str], Record]
Published = Mapping[tuple[str, str], Mapping[str, Any]]
Tasks = Mapping[str, Mapping[str, Any]]

MISSING = "n/a"
_MEASURES = ("kl", "top1_agreement", "perplexity")
_CACHE_TITLES = {"auto": "bfloat16", "fp8": "FP8"}


@dataclass(frozen=True)
class _Case:
    """One row: a variant with a KV cache dtype, and all that was measured for it."""

    variant: str
    kv_cache: str
    spec: Mapping[str, Any] | None
    known: bool  # something was measured, so the spec is known
    scores: Mapping[str, Record]
    fidelity: Record | None
    published: Mapping[str, Any] | None

    @property
    def cache_reduction(self) -> float:
        """Of the baseline's bfloat16 cache; FP8 halves what is left (scales not counted, as in the paper)."""
        kept = 1 - (self.spec["kv_cache_reduction"] if self.spec else 0.0)
        return 1 - (kept / 2 if self.kv_cache == "fp8" else kept)

    def score(self, task: str) -> Record | None:
        record = self.scores.get(task)
        return record if record and record["status"] == "ok" else None


def table2(scores: Scores, fidelity: Fidelity, variants: Sequence[str], tasks: Tasks, published: Published) -> Table:
    """Table 2 (and 3, B.2 to B.5 for other models): quality of each variant with the ordinary KV cache.

    Args:
        scores: score records by (variant, kv_cache, task).
        fidelity: fidelity records by (variant, kv_cache).
        variants: rows, in order.
        tasks: columns, in order: task name -> {"title", "shots"}.
        published: the paper's rows for this model by (variant, kv_cache), possibly none.
    """
    cases = _cases(scores, fidelity, [(variant, "auto") for variant in variants], tasks, published)
    title = f"{_model_title(scores, fidelity)}: quality with SingleInputKV and AcrossKV (paper's Table 2)"
    return _quality_table("table2", title, cases, tasks, quantization=False)


def table7(scores: Scores, fidelity: Fidelity, variants: Sequence[str], tasks: Tasks, published: Published) -> Table:
    """Table 7: each variant with the ordinary and with the per-token FP8 KV cache; arguments as in `table2`."""
    keys = [(variant, kv_cache) for variant in variants for kv_cache in ("auto", "fp8")]
    cases = _cases(scores, fidelity, keys, tasks, published)
    title = f"{_model_title(scores, fidelity)}: quality with an FP8 KV cache (paper's Table 7)"
    return _quality_table("table7", title, cases, tasks, quantization=True)


def _model_title(scores: Scores, fidelity: Fidelity) -> str:
    if only_model(scores, fidelity) is None:
        raise UserError("the table needs at least one score or fidelity file")
    return next(record["title"] for records in (scores, fidelity) for record in records.values())


def _cases(scores: Scores, fidelity: Fidelity, keys, tasks: Tasks, published: Published) -> list[_Case]:
    cases = []
    for variant, kv_cache in keys:
        own = {task: scores[variant, kv_cache, task] for task in tasks if (variant, kv_cache, task) in scores}
        close = fidelity.get((variant, kv_cache))
        anything = [*own.values(), *([close] if close else [])]
        spec = anything[0]["spec"] if anything else None
        theirs = published.get((variant, kv_cache))
        cases.append(_Case(variant, kv_cache, spec, bool(anything), own, close, theirs))
    return cases


def _quality_table(label: str, title: str, cases: list[_Case], tasks: Tasks, quantization: bool) -> Table:
    footnotes = Footnotes()
    averaged = _averaged_tasks(cases, tasks)
    records = [case.score(task) for case in cases for task in tasks]
    errors = [100 * record["stderr"] for record in records if record and record["stderr"] is not None]
    # A second decimal says nothing on a small subset, but stands where the paper's two stand beside it.
    decimals = 1 if errors and max(errors) >= 1 and not any(case.published for case in cases) else 2

    values, score_rows, close_rows, score_rules = [], [], [], []
    for case in cases:
        row = _values(case, tasks, averaged)
        values.append(row)
        head = _head(case, quantization, footnotes)
        if _starts_block(cases, len(values) - 1, quantization):
            score_rules.append(len(score_rows))
        cells = {_task_header(task, tasks, cases): _score_cell(case, task, decimals, footnotes) for task in tasks}
        average = MISSING if row["average"] is None else mean_and_error(row["average"], row["average_stderr"], decimals)
        score_rows.append({**head, **cells, "Avg.": average})
        if case.published:
            score_rows.append(_published_row(head, case, tasks, averaged, footnotes, list(cells)))
        close_rows.append({**head, **_fidelity_cells(case, footnotes)})
    close_rules = [index for index in range(len(cases)) if _starts_block(cases, index, quantization)]
    panels = [
        Panel(pd.DataFrame(score_rows), "(a) Benchmarks: mean ± standard error, in percent", tuple(score_rules)),
        Panel(pd.DataFrame(close_rows), "(b) Closeness to the teacher on held-out chats", tuple(close_rules)),
    ]
    notes = [*_notes(cases, tasks, averaged, quantization), *footnotes.lines()]
    return Table(label, title, pd.DataFrame(values), panels, notes)


def _starts_block(cases: list[_Case], index: int, quantization: bool) -> bool:
    """The paper's lines: below the baseline, before the AcrossKV rows; in Table 7 between variants."""
    if index == 0:
        return False
    if quantization:
        return cases[index].variant != cases[index - 1].variant

    def block(case: _Case) -> tuple[bool, bool]:
        return case.spec is None, case.spec is not None and case.spec["key_value_group_size"] > 1

    return block(cases[index]) != block(cases[index - 1])


def _averaged_tasks(cases: list[_Case], tasks: Tasks) -> list[str]:
    """Tasks scored in every row that has any score, so that the averages can be compared."""
    scored = [case for case in cases if any(case.score(task) for task in tasks)]
    return [task for task in tasks if scored and all(case.score(task) for case in scored)]


def _average(case: _Case, averaged: Sequence[str]) -> tuple[float | None, float | None]:
    """Mean over tasks in percent, and its standard error (the tasks' questions are independent samples)."""
    records = [case.score(task) for task in averaged]
    if not records or not all(records):
        return None, None
    mean = 100 * sum(record["value"] for record in records) / len(records)
    if any(record["stderr"] is None for record in records):
        return mean, None
    return mean, 100 * math.sqrt(sum(record["stderr"] ** 2 for record in records)) / len(records)


def _published_average(case: _Case, tasks: Tasks, averaged: Sequence[str]) -> tuple[float | None, bool]:
    """The paper's average over `averaged` tasks, and whether it is the printed one."""
    theirs = case.published or {}
    if len(averaged) == len(tasks) and theirs.get("average") is not None:
        return theirs["average"], True
    cells = [theirs.get(task) for task in averaged]
    if not cells or any(cell is None for cell in cells):
        return None, False
    return sum(cells) / len(cells), False


def _values(case: _Case, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores, agreement and reductions in percent, KL in nats a token."""
    records = [*case.scores.values(), *([case.fidelity] if case.fidelity else [])]
    spec = case.spec or {}
    row: dict[str, Any] = {
        "model": records[0]["model"] if records else None,
        "title": records[0]["title"] if records else None,
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "num_key_value_layers": spec.get("num_key_value_layers"),
        "key_value_group_size": spec.get("key_value_group_size"),
        "num_key_value_heads": spec.get("num_key_value_heads"),
        "prefill_reduction_percent": 100 * spec.get("prefill_reduction", 0.0) if case.known else None,
        "kv_cache_reduction_percent": 100 * case.cache_reduction if case.known else None,
    }
    for task in tasks:
        record = case.score(task)
        row[task] = 100 * record["value"] if record else None
        row[f"{task}_stderr"] = 100 * record["stderr"] if record and record["stderr"] is not None else None
        row[f"{task}_n"] = record["n"] if record else None
        row[f"{task}_published"] = case.published.get(task) if case.published else None
    row["average"], row["average_stderr"] = _average(case, averaged)
    row["average_tasks"] = " ".join(averaged)
    row["average_published"] = _published_average(case, tasks, averaged)[0]
    for measure in _MEASURES:
        scale = 100 if measure == "top1_agreement" else 1
        for moment, source in (("", case.fidelity), ("start_", (case.fidelity or {}).get("start"))):
            found = (source or {}).get(measure) or {}
            row[f"{moment}{measure}"] = scale * found["value"] if found else None
            row[f"{moment}{measure}_stderr"] = scale * found["stderr"] if found.get("stderr") is not None else None
    row["fidelity_documents"] = case.fidelity["documents"] if case.fidelity else None
    row["fidelity_tokens"] = case.fidelity["tokens"] if case.fidelity else None
    row["missing"] = "; ".join(f"{task}: {_reason(case, task)}" for task in tasks if not case.score(task)) or None
    return row


def _head(case: _Case, quantization: bool, footnotes: Footnotes) -> dict[str, str]:
    if not case.known:
        mark = footnotes.mark("nothing was measured for this row")
        reductions = {"Prefill\nreduction": f"{MISSING} {mark}", "AcrossKV\n(cache reduction)": MISSING}
    elif case.spec is None:
        none = "–" if case.kv_cache == "auto" else f"– ({percent(case.cache_reduction)})"
        reductions = {"Prefill\nreduction": "–", "AcrossKV\n(cache reduction)": none}
    else:
        spec, saved = case.spec, percent(case.cache_reduction)
        across = f"{spec['key_value_group_size']}-way ({saved})"
        if spec["key_value_group_size"] == 1:
            across = "–" if case.cache_reduction == 0 else f"– ({saved})"
        if spec.get("num_key_value_heads"):
            across += f", {spec['num_key_value_heads']} KV heads"
        reductions = {
            "Prefill\nreduction": f"{percent(spec['prefill_reduction'])} (l = {spec['num_key_value_layers']})",
            "AcrossKV\n(cache reduction)": across,
        }
    head = {"Variant": case.variant, **reductions}
    if quantization:
        head["KV cache"] = _CACHE_TITLES[case.kv_cache]
    return head


def _task_header(task: str, tasks: Tasks, cases: list[_Case]) -> str:
    records = [record for case in cases if (record := case.score(task))]
    shots = {record["shots"] for record in records} or {tasks[task]["shots"]}
    sizes = {record["n"] for record in records}
    lines = [tasks[task]["title"], f"{'/'.join(map(str, sorted(shots)))}-shot"]
    if sizes:
        lines.append(f"n = {'/'.join(f'{n:,}' for n in sorted(sizes))}")
    return "\n".join(lines)


def _reason(case: _Case, task: str) -> str:
    record = case.scores.get(task)
    return "not measured" if record is None else record.get("reason") or "unavailable, no reason recorded"


def _score_cell(case: _Case, task: str, decimals: int, footnotes: Footnotes) -> str:
    if record := case.score(task):
        error = None if record["stderr"] is None else 100 * record["stderr"]
        return mean_and_error(100 * record["value"], error, decimals)
    return f"{MISSING} {footnotes.mark(_reason(case, task))}"


def _published_row(head, case: _Case, tasks: Tasks, averaged, footnotes: Footnotes, headers: Sequence[str]):
    theirs = case.published
    pre, across, saved = (
        theirs.get(name) for name in ("prefill_reduction_percent", "acrosskv", "kv_cache_reduction_percent")
    )
    row = dict.fromkeys(head, "")
    row["Variant"] = "published"
    row["Prefill\nreduction"] = f"{pre:g}%" if pre else "–"
    row["AcrossKV\n(cache reduction)"] = f"{across:.0f}-way ({saved:g}%)" if across and across > 1 else "–"
    if "KV cache" in row:
        row["KV cache"] = _CACHE_TITLES[case.kv_cache]
    for header, task in zip(headers, tasks, strict=True):
        row[header] = MISSING if theirs.get(task) is None else f"{theirs[task]:.2f}"
    average, printed = _published_average(case, tasks, averaged)
    row["Avg."] = MISSING if average is None else f"{average:.2f}"
    if average is not None and not printed:
        row["Avg."] += f" {footnotes.mark('computed from the published scores of the averaged tasks')}"
    return row


def _fidelity_cells(case: _Case, footnotes: Footnotes) -> dict[str, str]:
    headers = {
        "kl": "KL to teacher,\nnats a token",
        "top1_agreement": "Top-1\nagreement, %",
        "perplexity": "Perplexity",
    }
    style = {"kl": (1, 4), "top1_agreement": (100, 2), "perplexity": (1, 2)}
    cells = {}
    for measure, header in headers.items():
        scale, decimals = style[measure]
        cells[header] = _measure(case.fidelity, measure, scale, decimals)
        if case.fidelity is None:
            cells[header] += f" {footnotes.mark('not measured')}"
    start = (case.fidelity or {}).get("start")
    for measure in ("kl", "top1_agreement"):
        scale, decimals = style[measure]
        header = {"kl": "KL before\ntraining", "top1_agreement": "Top-1 before\ntraining, %"}[measure]
        cells[header] = "–" if case.fidelity and not start else _measure(start, measure, scale, decimals)
    return cells


def _measure(source: Mapping[str, Any] | None, measure: str, scale: int, decimals: int) -> str:
    found = (source or {}).get(measure)
    if not found:
        return MISSING
    error = found.get("stderr")
    return mean_and_error(scale * found["value"], None if error is None else scale * error, decimals)


def _notes(cases: list[_Case], tasks: Tasks, averaged: Sequence[str], quantization: bool) -> list[str]:
    layers = {case.spec["num_hidden_layers"] for case in cases if case.spec}
    notes = []
    if layers:
        notes.append(
            f"Reductions are those of the model at hand, L = {enumeration([str(count) for count in sorted(layers)])}: "
            "(L - l) / L for prefill, and the exact share of the KV cache saved"
            + (", where FP8 halves the bytes (its scales are not counted)." if quantization else ".")
        )
    notes.append(_subsets(cases, tasks))
    titles = [tasks[task]["title"] for task in averaged]
    left_out = [tasks[task]["title"] for task in tasks if task not in averaged]
    if titles:
        text = f"Avg. is the mean over {enumeration(titles)}"
        notes.append(text + (f"; without {enumeration(left_out)}." if left_out else "."))
    documents = sorted({case.fidelity["documents"] for case in cases if case.fidelity})
    if documents:
        tokens = sorted({case.fidelity["tokens"] for case in cases if case.fidelity})
        notes.append(
            f"(b) is over {'/'.join(f'{n:,}' for n in documents)} held-out documents "
            f"({'/'.join(f'{n:,}' for n in tokens)} tokens), standard errors over documents. KL is "
            "KL(teacher ‖ student) at temperature 1; the teacher is the baseline with the ordinary KV cache."
        )
    if any(case.published for case in cases):
        sources = sorted({case.published["source"] for case in cases if case.published})
        notes.append(f"published: {enumeration(sources)}; its prefill reductions are nominal.")
    return notes


def _subsets(cases: list[_Case], tasks: Tasks) -> str:
    parts, seeds = [], set()
    for task in tasks:
        record = next((found for case in cases if (found := case.score(task))), None)
        if record and record["n"] < record["n_total"]:
            parts.append(f"{tasks[task]['title']} {record['n']:,} of {record['n_total']:,}")
            seeds.add(record["seed"])
    if not any(case.score(task) for case in cases for task in tasks):
        return "No task was scored."
    if not parts:
        return "Every task is scored on all of its questions. Prompts, metrics and data sources are in Table B.1."
    seed = ", ".join(map(str, sorted(seeds)))
    return (
        f"Scored on random subsets (seed {seed}), so not comparable with full-set results: {enumeration(parts)} "
        "questions. Prompts, metrics and data sources are in Table B.1."
    )
