"""Benchmark scores and closeness to the teacher, one row a case: the quality tables of the paper and the blog post."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.columns import Column, Line, grid, models, table
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.scored import (
    CLOSENESS,
    Row,
    Tasks,
    average_cells,
    average_note,
    averaged_tasks,
    closeness_cells,
    closeness_columns,
    decimals,
    missing,
    percent_published,
    published_average,
    published_checkpoints,
    rows,
    score_cells,
    subsets_note,
    task_columns,
)
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.artifacts.text import enumeration, heads_label, percent
from swiftkv.errors import UserError

_START = {"kl": "KL before\ntraining", "top1_agreement": "Top-1 before\ntraining, %"}
_COMPUTED = "computed from the published scores of the averaged tasks"


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Scores and fidelity of every row.

    Raises:
        UserError: the entry names both parts and variants, or neither.
    """
    if ("parts" in entry) == ("cases" in entry):
        raise UserError(f"artifacts.{entry['name']} takes either models and variants, or parts")
    scores = {"scores": paths.scores(config, entry)} if "tasks" in entry else {}
    return {**scores, "fidelity": paths.fidelity(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """Two panels, (a) benchmarks and (b) closeness to the teacher, with the published rows below ours in (a).

    Without tasks there is the second one only.
    """
    cases, tasks = rows(entry, files), entry.get("tasks", {})
    averaged, digits, footnotes = averaged_tasks(cases, tasks), decimals(cases, tasks), Footnotes()
    quantized = any(row.kv_cache == "fp8" for row in cases)
    lines = [_line(row, tasks, averaged) for row in cases]

    def published_mean(line: Line) -> str:
        row = line["_row"]
        mean, printed = published_average(row, list(tasks), averaged)
        remark = "" if mean is None or printed else f" {footnotes.mark(_COMPUTED)}"
        return percent_published(mean, row.published, tasks) + remark

    def block(line: Line) -> tuple[Any, ...]:
        """The paper's lines: between models, below the baseline, before AcrossKV; with FP8 between variants."""
        spec = line["_row"].spec
        kind = line["variant"] if quantized else (spec is None, (spec or {}).get("key_value_group_size", 1) > 1)
        return line["model"], kind

    head = [
        *models(lines),
        Column("Variant", "variant"),
        Column("Prefill\nreduction", _prefill, below=_published_prefill),
        Column("AcrossKV\n(cache reduction)", _cache, below=_published_cache),
    ]
    if quantized:
        titles = {"auto": "bfloat16", "fp8": "FP8"}
        head.append(Column("KV cache", "kv_cache", titles.get, below=lambda line: titles[line["kv_cache"]]))
    panels = []
    if tasks:
        benchmarks = [
            replace(column, below=_published_score(column.value, tasks))
            for column in task_columns(cases, tasks, digits)
        ]
        benchmarks.append(Column("Avg.", "average", f".{digits}f", below=published_mean))
        caption = "(a) Benchmarks: mean ± standard error, in percent"
        both = [line | _published_below(row) for line, row in zip(lines, cases, strict=True)]
        panels.append(grid(both, [*head, *benchmarks], footnotes, caption, block))
    closeness = closeness_columns()
    for measure, header in _START.items():
        number = Column(header, f"start_{measure}", CLOSENESS[measure][2])
        closeness.append(
            Column(header, lambda line, number=number: "–" if line["_no_start"] else number.cell(line, footnotes))
        )
    caption = f"{'(b) ' if tasks else ''}Closeness to the teacher on held-out chats"
    panels.append(grid(lines, [*head, *closeness], footnotes, caption, block))
    notes = [*entry.get("notes", []), *_notes(cases, tasks, averaged, quantized)]
    return table(entry, lines, panels, notes, footnotes)


def _line(row: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores, agreement and reductions in percent, KL in nats a token."""
    spec, cache = row.spec or {}, row.cache_reduction if row.known else None
    line = {
        **row.head,
        **{name: spec.get(name) for name in ("num_key_value_layers", "key_value_group_size", "num_key_value_heads")},
        "prefill_reduction_percent": 100 * row.prefill_reduction if row.known else None,
        "kv_cache_reduction_percent": None if cache is None else 100 * cache,
    }
    for task in tasks:
        line |= {**score_cells(row, task, tasks), f"{task}_published": row.published.get(task)}
    return line | {
        **average_cells(row, averaged),
        "average_published": published_average(row, list(tasks), averaged)[0],
        **closeness_cells(row, start=True),
        "fidelity_documents": row.closeness.get("documents"),
        "fidelity_tokens": row.closeness.get("tokens"),
        "missing": missing(row, fidelity=row.fidelity),
        "_no_start": row.closeness and not row.closeness.get("start"),
        "_row": row,
    }


def _prefill(line: Line) -> str | None:
    row = line["_row"]
    if not row.known:
        return None
    return f"{percent(row.prefill_reduction)} (l = {row.spec['num_key_value_layers']})" if row.spec else "–"


def _cache(line: Line) -> str | None:
    row = line["_row"]
    if not row.known:
        return None
    saved = MISSING if row.cache_reduction is None else percent(row.cache_reduction)
    group = row.spec["key_value_group_size"] if row.spec else 1
    across = f"{group}-way ({saved})" if group > 1 else "–" if row.cache_reduction == 0 else f"– ({saved})"
    return across + heads_label(row.spec)


def _published_below(row: Row) -> dict[str, tuple[str, str | None]]:
    return {"_below": ("published", row.published.get("note"))} if row.published else {}


def _published_prefill(line: Line) -> str:
    skipped = line["_row"].published.get("prefill_reduction_percent")
    return "" if skipped is None else f"{skipped:g}%" if skipped else "–"


def _published_score(task: str, tasks: Tasks) -> Callable[[Line], str]:
    return lambda line: percent_published(line[f"{task}_published"], line["_row"].published, tasks)


def _published_cache(line: Line) -> str:
    group, saved = (line["_row"].published.get(name) for name in ("acrosskv", "kv_cache_reduction_percent"))
    across = f"{group:.0f}-way" if group and group > 1 else "–"
    return "" if saved is None else f"{across} ({saved:g}%)" if saved else across


def _notes(found: Sequence[Row], tasks: Tasks, averaged: Sequence[str], quantized: bool) -> list[str]:
    notes = []
    layers = sorted({row.spec["num_hidden_layers"] for row in found if row.spec})
    if layers:
        notes.append(
            f"Reductions are those of the model at hand, L = {enumeration([str(count) for count in layers])}: "
            "(L - l) / L for prefill, and the exact share of the KV cache saved"
            + (", where FP8 halves the bytes (its scales are not counted)." if quantized else ".")
        )
    if tasks:
        notes.append(subsets_note(found, tasks))
    notes += filter(None, [average_note(averaged, tasks)])
    documents = sorted({row.closeness["documents"] for row in found if row.closeness})
    if documents:
        tokens = sorted({row.closeness["tokens"] for row in found if row.closeness})
        notes.append(
            f"Closeness is over {'/'.join(f'{n:,}' for n in documents)} held-out documents "
            f"({'/'.join(f'{n:,}' for n in tokens)} tokens), standard errors over documents. KL is "
            "KL(teacher ‖ student) at temperature 1; the teacher is the row's own model, unchanged, with the ordinary "
            "KV cache."
        )
    for variant, origin in published_checkpoints(found).items():
        notes.append(f"{variant} was not trained here: it is the published checkpoint {origin}.")
    if any(row.published for row in found):
        sources = sorted({row.published["source"] for row in found if row.published})
        notes.append(" ".join([f"published: {enumeration(sources)}.", *_nominal(found)]))
    return notes


def _nominal(found: Sequence[Row]) -> list[str]:
    """Which published reductions are not those of the model."""
    sentences = []
    for what, column in (("prefill", "prefill_reduction_percent"), ("cache", "kv_cache_reduction_percent")):
        differing = []
        for row in found:
            theirs = row.published.get(column)
            ours = row.cache_reduction if what == "cache" else row.prefill_reduction
            if theirs is not None and ours is not None and abs(theirs - 100 * ours) >= 0.05:
                differing.append(f"{theirs:g}% of {row.variant} is {percent(ours)}")
        if differing:
            sentences.append(f"Its {what} reductions are nominal: {enumeration(list(dict.fromkeys(differing)))}.")
    return sentences


KIND = Kind(
    "table", ("models", "variants", "tasks", "parts"), needs, make, optional=("models", "variants", "tasks", "parts")
)
