"""Benchmark scores and closeness to the teacher, one row a case: the quality tables of the paper and the blog post."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from swiftkv.artifacts import paired
from swiftkv.artifacts.columns import Column, Line, grid, models, table
from swiftkv.artifacts.contrary import contrary_notes, pairs
from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.scored import CLOSENESS, Row, Scored, closeness_columns, rows
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.artifacts.text import enumeration, heads_label, percent
from swiftkv.artifacts.trained import training_notes, unread_notes
from swiftkv.errors import UserError
from swiftkv.section import Names

_START = {"kl": "KL before\ntraining", "top1_agreement": "Top-1 before\ntraining, %"}
_COMPUTED = "computed from the published scores of the averaged tasks"


def _extra(config: Config, entry: Entry) -> dict[str, Any]:
    """The pairs of which the paper has the first better; refuses an entry with both parts and variants, or neither."""
    if ("parts" in entry) == ("cases" in entry):
        raise UserError(f"artifacts.{entry['name']} takes either models and variants, or parts")
    return {"better": pairs(config, entry)} if "better" in entry else {}


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
        grids.append(("Benchmarks: mean ± standard error, in percent", both, [*head, *benchmarks]))
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
        grids.append(("Differences on the same chats and questions", compared, differences))
    panels = [
        grid(shown, columns, footnotes, f"({letter}) {caption}" if len(grids) > 1 else caption, block)
        for letter, (caption, shown, columns) in zip("abc", grids, strict=False)
    ]
    against = contrary_notes(entry.get("better", []), scored.rows)
    notes = [*entry.get("notes", []), *against, *scored.noise_notes([*lines, *compared]), *_notes(scored, quantized)]
    notes += training_notes(entry, files)
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


def _notes(scored: Scored, quantized: bool) -> list[str]:
    notes, found = [], scored.rows
    layers = sorted({row.spec["num_hidden_layers"] for row in found if row.spec})
    if layers:
        notes.append(
            f"Reductions are those of the model at hand, L = {enumeration([str(count) for count in layers])}: "
            "(L - l) / L for prefill, and the exact share of the KV cache saved"
            + (", where FP8 halves the bytes (its scales are not counted)." if quantized else ".")
        )
    if scored.tasks:
        notes.append(scored.subsets_note())
        notes += unread_notes(scored)
    notes += scored.average_note()
    documents, tokens = (
        "/".join(f"{number:,}" for number in sorted({row.closeness[name] for row in found if row.closeness}))
        for name in ("documents", "tokens")
    )
    if documents:
        texts = [text for text in dict.fromkeys(row.fidelity.text for row in found) if text]
        over = enumeration(texts) if texts else f"{documents} held-out documents"
        notes.append(
            f"Closeness is over {over} ({tokens} tokens in all), standard errors over documents. KL is "
            "KL(teacher ‖ student) at temperature 1; the teacher is the row's own model, unchanged, with the ordinary "
            "KV cache."
        )
    notes += _caches(found)
    others = {
        row.variant: record.checkpoint
        for row in found
        for record in (*row.scores.values(), row.fidelity)
        if record.checkpoint
    }
    for variant, origin in others.items():
        text = f"it is the published checkpoint {origin['id']} ({origin['resolved']})"
        notes.append(f"{variant} was not trained here: {text}.")
    if any(row.published for row in found):
        sources = sorted({row.published["source"] for row in found if row.published})
        notes.append(" ".join([f"published: {enumeration(sources)}.", *_nominal(found)]))
    return notes


def _caches(found: Sequence[Row]) -> list[str]:
    """What each row's cache saves, where the KV heads of some were replaced: the rows are meant to save the same."""
    shown = [row for row in found if row.spec and row.cache_reduction is not None]
    if not any(row.spec["num_key_value_heads"] for row in shown):
        return []
    saved = {row.variant: percent(row.cache_reduction) for row in shown}
    if len(set(saved.values())) == 1:
        return [f"Every row saves {next(iter(saved.values()))} of the KV cache."]
    shares = enumeration([f"{variant} {share}" for variant, share in saved.items()])
    return [f"The rows do not save the same share of the KV cache: {shares}."]


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


_SCOPE = ("models", "variants", "tasks", "parts")
KIND = ArtifactKind(
    "table",
    _SCOPE,
    ("scores", "fidelity", "training"),
    make,
    own={"better": list[Annotated[Names, Field(min_length=2, max_length=2)]]},
    optional=(*_SCOPE, "better"),
    extra=_extra,
)
