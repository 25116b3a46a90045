"""Benchmark scores and closeness to the teacher, one row a case: the quality tables of the paper and the blog post."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.artifacts import paired
from pipeline.artifacts.columns import Column, Line, grid, models, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import MISSING
from pipeline.artifacts.scored import CLOSENESS, Row, Scored, closeness_columns, rows
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import heads_label, percent
from swiftkv.errors import UserError

_START = {"kl": "KL before\ntraining", "top1_agreement": "Top-1 before\ntraining, %"}
_COMPUTED = "computed from the published scores of the averaged tasks"


def _check(config: Config, entry: Entry) -> None:
    """Refuse an entry with both parts and variants, or neither."""
    if ("parts" in entry) == ("cases" in entry):
        raise UserError(f"artifacts.{entry['name']} takes either models and variants, or parts")


def make(entry: Entry, files: Files) -> Table:
    """Benchmarks with the published rows below ours, closeness to the teacher, and differences on the same questions.

    Closeness comes first where benchmarks are of few questions, and alone without tasks.
    """
    scored, footnotes = Scored(rows(entry, files), entry.get("tasks", {})), Footnotes()
    quantized = any(row.kv_cache == "fp8" for row in scored.rows)
    lines = [_line(row, scored) for row in scored.rows]

    def published_mean(line: Line) -> str:
        row = line["_row"]
        mean, printed = row.published_average(scored.averaged)
        return row.in_print(mean) + ("" if mean is None or printed else f" {footnotes.mark(_COMPUTED)}")

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
    compared_lines = paired.lines(scored.rows, scored.tasks, scored.averaged)
    compared = [
        {**line, "against": other.variant, "against_kv_cache": other.kv_cache}
        | paired.compare(row, other, scored.tasks, scored.averaged, strict=False)
        for row, line in zip(scored.rows, lines, strict=True)
        if compared_lines and (other := paired.reference(row, scored.rows))
    ]
    grids = []
    if scored.tasks:
        benchmarks = [
            replace(column, below=lambda line, name=f"{column.value}_published": line["_row"].in_print(line[name]))
            for column in scored.columns()
        ]
        benchmarks.append(Column("Avg.", "average", f".{scored.digits}f", below=published_mean))
        theirs = [row.published and ("published", row.published.get("note")) for row in scored.rows]
        both = [line | {"_below": below} for line, below in zip(lines, theirs, strict=True)]
        grids.append(
            (
                "Benchmarks, %: ± standard error, [ ] Wilson interval, ≈ within noise",
                both,
                [*head, *benchmarks],
            )
        )
    closeness = closeness_columns()
    for measure, header in _START.items():
        number = Column(header, f"start_{measure}", CLOSENESS[measure][2])
        closeness.append(
            Column(header, lambda line, number=number: "–" if line["_no_start"] else number.cell(line, footnotes))
        )
    grids.insert(0 if scored.few else 1, ("Closeness to the teacher on held-out chats", lines, [*head, *closeness]))
    shown = [*closeness_columns(), *scored.columns(), Column("Avg.", "average", f".{scored.digits}f")]
    if shown := [
        column for column in shown if any(line.get(f"{column.value}_difference") is not None for line in compared_lines)
    ]:
        names = [column for column in head if column.header in ("Model", "Variant", "KV cache")]
        differences = [*names, Column("against", "against"), *paired.columns(shown)]
        grids.append(
            ("Differences on the same chats and questions; ( ) share of answers that changed", compared, differences)
        )
    panels = [
        grid(shown, columns, footnotes, f"({letter}) {caption}" if len(grids) > 1 else caption, block)
        for letter, (caption, shown, columns) in zip("abc", grids, strict=False)
    ]
    notes = [*entry.get("notes", []), *scored.average_note()]
    return table(entry, [*lines, *compared_lines], panels, notes, footnotes)


def _line(row: Row, scored: Scored) -> dict[str, Any]:
    """A line of the CSV: scores, agreement and reductions in percent, KL in nats a token."""
    spec, cache = row.spec or {}, row.cache_reduction if row.known else None
    line = {
        "row": "measured",
        **row.head,
        **{name: spec.get(name) for name in ("num_key_value_layers", "key_value_group_size", "num_key_value_heads")},
        "prefill_reduction_percent": 100 * row.prefill_reduction if row.known else None,
        "kv_cache_reduction_percent": None if cache is None else 100 * cache,
    }
    for task, settings in scored.tasks.items():
        line |= {**row.score(task, settings), f"{task}_published": row.published.get(task)}
    return line | {
        **scored.average(row),
        "average_published": row.published_average(scored.averaged)[0],
        **row.close(start=True),
        "fidelity_documents": row.closeness.get("documents"),
        "fidelity_tokens": row.closeness.get("tokens"),
        "missing": row.missing(fidelity=row.fidelity),
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


def _published_prefill(line: Line) -> str:
    skipped = line["_row"].published.get("prefill_reduction_percent")
    return "" if skipped is None else f"{skipped:g}%" if skipped else "–"


def _published_cache(line: Line) -> str:
    group, saved = (line["_row"].published.get(name) for name in ("acrosskv", "kv_cache_reduction_percent"))
    across = f"{group:.0f}-way" if group and group > 1 else "–"
    return "" if saved is None else f"{across} ({saved:g}%)" if saved else across


_SCOPE = ("models", "variants", "tasks", "parts")
KIND = ArtifactKind(
    "table",
    _SCOPE,
    ("scores", "fidelity"),
    make,
    optional=_SCOPE,
    extra=_check,
)
