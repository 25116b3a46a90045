"""Benchmark scores and closeness to the teacher, one row a case: the quality tables of the paper and the blog post."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.scored import (
    Row,
    average,
    average_note,
    averaged_tasks,
    decimals,
    one_form,
    percent_published,
    published_average,
    published_checkpoints,
    rows,
    subsets_note,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, heading, heads_label, mean_and_error, percent

Tasks = Mapping[str, Mapping[str, Any]]

CLOSENESS = {  # header, factor and digits of each measure of closeness
    "kl": ("KL to teacher,\nnats a token", 1, 4),
    "top1_agreement": ("Top-1\nagreement, %", 100, 2),
    "perplexity": ("Perplexity", 1, 2),
}
_START = {"kl": "KL before\ntraining", "top1_agreement": "Top-1 before\ntraining, %"}
_CACHE_TITLES = {"auto": "bfloat16", "fp8": "FP8"}
_PREFILL, _CACHE = "Prefill\nreduction", "AcrossKV\n(cache reduction)"


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Scores and fidelity of every row."""
    one_form(entry)
    scores = {"scores": paths.scores(config, entry)} if "tasks" in entry else {}
    return {**scores, "fidelity": paths.fidelity(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """Two panels, (a) benchmarks and (b) closeness to the teacher, with the published rows below ours in (a).

    Without tasks there is the second one only.
    """
    found, tasks = rows(entry, files), entry.get("tasks", {})
    averaged, digits, footnotes = averaged_tasks(found, tasks), decimals(found, tasks), Footnotes()
    several = len({row.model["name"] for row in found}) > 1
    quantized = any(row.kv_cache == "fp8" for row in found)

    heads = [_head(row, several, quantized) for row in found]
    scores, closeness = [], []
    for row, head in zip(found, heads, strict=True):
        cells = {_task_header(task, tasks, found): _score_cell(row, task, digits, footnotes) for task in tasks}
        mean, error = average(row, averaged)
        cells["Avg."] = MISSING if mean is None else mean_and_error(mean, error, digits)
        scores.append([{**head, **cells}])
        if row.published:
            theirs = _published_cells(row, list(tasks), averaged, list(cells)[:-1], footnotes)
            scores[-1].append({**_published_head(row, head, footnotes), **theirs})
    for row, head in zip(found, heads, strict=True):
        closeness.append([{**head, **_closeness_cells(row, footnotes)}])
    close = "Closeness to the teacher on held-out chats"
    panels = [_panel(f"(b) {close}" if tasks else close, found, closeness, quantized)]
    if tasks:
        panels.insert(0, _panel("(a) Benchmarks: mean ± standard error, in percent", found, scores, quantized))
    values = pd.DataFrame([_values(row, tasks, averaged) for row in found])
    notes = [*entry.get("notes", []), *_notes(found, tasks, averaged, quantized), *footnotes.lines()]
    return Table(entry["name"], heading(entry), values, panels, notes)


def _panel(caption: str, found: Sequence[Row], lines: Sequence[list[dict[str, str]]], quantized: bool) -> Panel:
    """The grid of each row's printed lines, with a heading above every part and a rule above every block."""
    printed, rules, headings = [], [], {}
    for number, (row, own) in enumerate(zip(found, lines, strict=True)):
        before = found[number - 1] if number else None
        if row.part is not None and (before is None or row.part != before.part):
            headings[len(printed)] = row.part
        elif before is not None and _starts_block(before, row, quantized):
            rules.append(len(printed))
        printed += own
    return Panel(pd.DataFrame(printed), caption, tuple(rules), headings)


def _starts_block(before: Row, row: Row, quantized: bool) -> bool:
    """The paper's lines: between models, below the baseline, before the AcrossKV rows; with FP8 between variants."""
    if quantized:
        return (before.model["name"], before.variant) != (row.model["name"], row.variant)

    def block(of: Row) -> tuple[str, bool, bool]:
        return of.model["name"], of.spec is None, of.spec is not None and of.spec["key_value_group_size"] > 1

    return block(before) != block(row)


def _values(row: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores, agreement and reductions in percent, KL in nats a token."""
    spec, theirs = row.spec or {}, row.published or {}
    cache = row.cache_reduction if row.known else None
    values: dict[str, Any] = {
        "model": row.model["name"],
        "title": row.model["title"],
        **({} if row.part is None else {"part": row.part}),
        "variant": row.variant,
        "kv_cache": row.kv_cache,
        "num_key_value_layers": spec.get("num_key_value_layers"),
        "key_value_group_size": spec.get("key_value_group_size"),
        "num_key_value_heads": spec.get("num_key_value_heads"),
        "prefill_reduction_percent": 100 * spec.get("prefill_reduction", 0.0) if row.known else None,
        "kv_cache_reduction_percent": None if cache is None else 100 * cache,
    }
    for task in tasks:
        result = record.result if (record := row.score(task)) else None
        values[task] = 100 * result["value"] if result else None
        values[f"{task}_stderr"] = 100 * result["stderr"] if result and result["stderr"] is not None else None
        values[f"{task}_n"] = result["n"] if result else None
        values[f"{task}_published"] = theirs.get(task)
    values["average"], values["average_stderr"] = average(row, averaged)
    values["average_tasks"] = " ".join(averaged)
    values["average_published"] = published_average(row, list(tasks), averaged)[0]
    for measure, (_, scale, _) in CLOSENESS.items():
        for moment, source in (("", row.closeness), ("start_", row.closeness.get("start") or {})):
            measured = source.get(measure) or {}
            values[f"{moment}{measure}"] = scale * measured["value"] if measured else None
            error = measured.get("stderr")
            values[f"{moment}{measure}_stderr"] = None if error is None else scale * error
    values["fidelity_documents"] = row.closeness.get("documents")
    values["fidelity_tokens"] = row.closeness.get("tokens")
    missing = [f"{task}: {row.reason(row.scores.get(task))}" for task in tasks if not row.score(task)]
    missing += [] if row.closeness else [f"fidelity: {row.reason(row.fidelity)}"]
    values["missing"] = "; ".join(missing) or None
    return values


def _head(row: Row, several: bool, quantized: bool) -> dict[str, str]:
    head = {"Model": row.model["title"]} if several else {}
    head["Variant"] = row.variant
    if not row.known:
        head |= {_PREFILL: MISSING, _CACHE: MISSING}
    else:
        saved = MISSING if row.cache_reduction is None else percent(row.cache_reduction)
        group = row.spec["key_value_group_size"] if row.spec else 1
        across = f"{group}-way ({saved})" if group > 1 else "–" if row.cache_reduction == 0 else f"– ({saved})"
        across += heads_label(row.spec)
        prefill = "–"
        if row.spec:
            prefill = f"{percent(row.spec['prefill_reduction'])} (l = {row.spec['num_key_value_layers']})"
        head |= {_PREFILL: prefill, _CACHE: across}
    if quantized:
        head["KV cache"] = _CACHE_TITLES[row.kv_cache]
    return head


def _task_header(task: str, tasks: Tasks, found: Sequence[Row]) -> str:
    records = [record for row in found if (record := row.score(task))]
    shots = {record.settings["shots"] for record in records} or {tasks[task]["shots"]}
    sizes = {record.result["n"] for record in records}
    lines = [tasks[task]["title"], f"{'/'.join(map(str, sorted(shots)))}-shot"]
    if sizes:
        lines.append(f"n = {'/'.join(f'{n:,}' for n in sorted(sizes))}")
    return "\n".join(lines)


def _score_cell(row: Row, task: str, digits: int, footnotes: Footnotes) -> str:
    if record := row.score(task):
        return _measured(record.result, 100, digits)
    return f"{MISSING} {footnotes.mark(row.reason(row.scores.get(task)))}"


def _measured(found: Mapping[str, Any] | None, scale: int, digits: int) -> str:
    """A value with its standard error."""
    if not found:
        return MISSING
    error = found["stderr"]
    return mean_and_error(scale * found["value"], None if error is None else scale * error, digits)


def _published_head(row: Row, head: Mapping[str, str], footnotes: Footnotes) -> dict[str, str]:
    theirs = row.published
    cells = dict.fromkeys(head, "")
    cells[next(iter(head))] = "published" + (f" {footnotes.mark(theirs['note'])}" if theirs.get("note") else "")
    skipped, group, saved = (
        theirs.get(name) for name in ("prefill_reduction_percent", "acrosskv", "kv_cache_reduction_percent")
    )
    if skipped is not None:
        cells[_PREFILL] = f"{skipped:g}%" if skipped else "–"
    if saved is not None:
        across = f"{group:.0f}-way" if group and group > 1 else "–"
        cells[_CACHE] = f"{across} ({saved:g}%)" if saved else across
    if "KV cache" in cells:
        cells["KV cache"] = head["KV cache"]
    return cells


def _published_cells(
    row: Row, tasks: list[str], averaged: Sequence[str], headers: list[str], footnotes: Footnotes
) -> dict[str, str]:
    theirs = row.published
    cells = {
        header: percent_published(theirs.get(task), theirs, tasks)
        for header, task in zip(headers, tasks, strict=True)
    }  # fmt: skip
    mean, printed = published_average(row, tasks, averaged)
    cells["Avg."] = percent_published(mean, theirs, tasks)
    if mean is not None and not printed:
        cells["Avg."] += f" {footnotes.mark('computed from the published scores of the averaged tasks')}"
    return cells


def _closeness_cells(row: Row, footnotes: Footnotes) -> dict[str, str]:
    start, cells = row.closeness.get("start"), {}
    for measure, (header, scale, digits) in CLOSENESS.items():
        cells[header] = _measured(row.closeness.get(measure), scale, digits)
        if not row.closeness:
            cells[header] += f" {footnotes.mark(row.reason(row.fidelity))}"
    for measure, header in _START.items():
        _, scale, digits = CLOSENESS[measure]
        cells[header] = "–" if row.closeness and not start else _measured((start or {}).get(measure), scale, digits)
    return cells


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
            theirs = (row.published or {}).get(column)
            ours = row.cache_reduction if what == "cache" else (row.spec or {}).get("prefill_reduction", 0.0)
            if theirs is not None and ours is not None and abs(theirs - 100 * ours) >= 0.05:
                differing.append(f"{theirs:g}% of {row.variant} is {percent(ours)}")
        if differing:
            sentences.append(f"Its {what} reductions are nominal: {enumeration(list(dict.fromkeys(differing)))}.")
    return sentences


KIND = Kind(
    "table", ("models", "variants", "tasks", "parts"), needs, make, optional=("models", "variants", "tasks", "parts")
)
