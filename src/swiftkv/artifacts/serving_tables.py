"""Table 5 and the blog's Table 1: combined throughput under a memory limit, and against KV-cache compression alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from swiftkv.artifacts.inputs import Record
from swiftkv.artifacts.serving import (
    BASELINE,
    MISSING,
    Case,
    Serving,
    absent,
    case_of,
    check_comparable,
    devices,
    heading,
    length_label,
    limit,
    on_paper_hardware,
    ratio,
    throughput,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, show


@dataclass(frozen=True)
class _Row:
    """One printed line: a model at a point, with its records by case and the published row, if it may stand there."""

    model: str
    point: str
    head: dict[str, str]
    records: Mapping[Case, Record]
    published: Mapping[str, Any] | None

    @property
    def baseline(self) -> Record | None:
        return self.records.get(BASELINE)


def table5(serving: Serving) -> Table:
    """Table 5: throughput of one model under memory limits; the points are the limits.

    `serving.published` has the paper's rows by (model, memory_gib). They stand beside ours where the paper's model ran
    on one H100, as the paper's did.

    Raises:
        UserError: records of different hardware or engines.
    """

    def describe(record: Record | None, point: str) -> dict[str, str]:
        gigabytes = record["settings"].get("memory_gib") if record else None
        return {"Memory": point if gigabytes is None else f"{gigabytes:g} GB"}

    def published(row_records: Sequence[Record], name: str) -> Mapping[str, Any] | None:
        gigabytes = row_records[0]["settings"].get("memory_gib")
        theirs = serving.published.get((name, f"{gigabytes:g}")) if gigabytes is not None else None
        return theirs if on_paper_hardware(row_records, 1) else None

    table = _throughput_table(
        serving,
        "table5",
        f"{heading(serving)}: throughput under a memory limit (paper's Table 5, to which the blog refers as its Table 8)",
        describe,
        published,
    )
    note = (
        "Memory is the stated limit for weights and KV cache, on a GPU for activations too. OOM: nothing is left for a KV "
        "cache that holds one request."
    )
    return Table(table.label, table.title, table.values, table.panels, [note, *table.notes])


def blog_table1(serving: Serving) -> Table:
    """The blog's Table 1: baseline, Merge-all-Layers and SwiftKV throughput by model and input length.

    `serving.published` has the blog's rows by (model, input_length); see `table5`. The models' GPUs (1 and 4 H100s)
    have to be the blog's.
    """

    def describe(record: Record | None, point: str) -> dict[str, str]:
        return {"Input": length_label(record["settings"]["input_tokens"]) if record else point}

    def published(row_records: Sequence[Record], name: str) -> Mapping[str, Any] | None:
        theirs = serving.published.get((name, length_label(row_records[0]["settings"]["input_tokens"])))
        return theirs if theirs and on_paper_hardware(row_records, theirs["gpus"]) else None

    title = f"{heading(serving)}: throughput with less compute or less memory (blog's Table 1)"
    return _throughput_table(serving, "blog_table1", title, describe, published)


def published_column(case: Case) -> str:
    """The column of a case in the published files: swiftkv-50-across4 with FP8 is swiftkv_50_across4_fp8."""
    return case.variant.replace("-", "_") + ("_fp8" if case.kv_cache == "fp8" else "")


def _throughput_table(
    serving: Serving,
    label: str,
    title: str,
    describe: Callable[[Record | None, str], dict[str, str]],
    published: Callable[[Sequence[Record], str], Mapping[str, Any] | None],
) -> Table:
    rows = []
    for model in serving.models:
        records = serving.of(model)
        check_comparable(records, title.rpartition("(")[2].rstrip(")").split(",")[0])
        for point in serving.points:
            found = {case_of(record): record for record in serving.of(model, [point])}
            own = list(found.values())
            theirs = published(own, serving.published_names.get(model, model)) if own else None
            head = {"Model": serving.title(model)} if len(serving.models) > 1 else {}
            head |= describe(own[0] if own else None, point)
            rows.append(_Row(model, point, head, found, theirs))
    footnotes = Footnotes()
    values = [_values(serving, row, case) for row in rows for case in serving.cases]
    panels = [
        Panel(*_speeds(serving, rows, footnotes)),
        Panel(pd.DataFrame([_gains(serving, row) for row in rows]), "(b) Speed-up over the baseline (limit: by FLOPs)"),
        Panel(
            pd.DataFrame([_capacity(serving, row, footnotes) for row in rows]),
            "(c) Tokens that fit into the KV cache, as vLLM reports them",
        ),
    ]
    return Table(label, title, pd.DataFrame(values), panels, [*_notes(serving, rows), *footnotes.lines()])


def _speeds(serving: Serving, rows: Sequence[_Row], footnotes: Footnotes) -> tuple[pd.DataFrame, str, tuple[int, ...]]:
    """Panel (a): throughput, the published row below ours."""
    printed, rules = [], []
    any_published = any(row.published for row in rows)
    for row in rows:
        if printed and any_published:
            rules.append(len(printed))
        cells = {serving.label(case): _speed(row.records.get(case), footnotes) for case in serving.cases}
        printed.append({**row.head, **cells})
        if row.published:
            head = dict.fromkeys(row.head, "") | {next(iter(row.head)): "published"}
            theirs = {serving.label(case): _published(row.published, case) for case in serving.cases}
            printed.append({**head, **theirs})
    return pd.DataFrame(printed), "(a) Input and output tokens a second", tuple(rules)


def _speed(record: Record | None, footnotes: Footnotes) -> str:
    value = throughput(record)
    if value is not None:
        return show(value, 3)
    reason = "not measured" if record is None else record.get("reason")
    return f"{absent(record)} {footnotes.mark(reason)}" if reason else absent(record)


def _published(theirs: Mapping[str, Any], case: Case) -> str:
    value = theirs.get(published_column(case))
    return MISSING if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def _gains(serving: Serving, row: _Row) -> dict[str, str]:
    cells = {}
    for case in serving.cases:
        if case == BASELINE:
            continue
        record = row.records.get(case)
        value, bound = throughput(record), limit(record)
        gain = ratio(value, throughput(row.baseline))
        if value is None:
            text = absent(record)
        elif gain is None:
            text = f"– (baseline {absent(row.baseline)})"
        else:
            text = f"{gain:.2f}×" + (f" (limit {bound:.2f}×)" if bound else "")
        cells[serving.label(case)] = text
    return {**row.head, **cells}


def _capacity(serving: Serving, row: _Row, footnotes: Footnotes) -> dict[str, str]:
    cells = {}
    for case in serving.cases:
        record = row.records.get(case)
        tokens = ((record or {}).get("engine") or {}).get("kv_cache_tokens")
        if tokens:
            text = f"{tokens:,}"
        elif record and record["status"] == "ok":
            text = f"{MISSING} {footnotes.mark('the engine did not report it')}"
        else:
            text = absent(record)
        cells[serving.label(case)] = text
    return {**row.head, **cells}


def _values(serving: Serving, row: _Row, case: Case) -> dict[str, Any]:
    """A line of the CSV: one model, point and case."""
    record = row.records.get(case)
    known, result = record or {}, (record or {}).get("result") or {}
    settings, engine = known.get("settings") or {}, known.get("engine") or {}
    gain, bound = ratio(throughput(record), throughput(row.baseline)), limit(record)
    theirs = row.published.get(published_column(case)) if row.published else None
    return {
        "model": row.model,
        "title": serving.title(row.model),
        "point": row.point,
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "status": known.get("status", "missing"),
        "reason": known.get("reason"),
        "weights": known.get("weights"),
        "gpus_or_processors": devices(record) if record else None,
        "memory_gib": settings.get("memory_gib"),
        "memory": settings.get("memory"),
        "input_tokens": settings.get("input_tokens"),
        "output_tokens": settings.get("output_tokens"),
        "num_prompts": settings.get("num_prompts"),
        "tokens_per_second": result.get("tokens_per_second"),
        "normalized_tflops_per_gpu": result.get("normalized_tflops_per_gpu"),
        "speedup": gain,
        "speedup_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
        "kv_cache_tokens": engine.get("kv_cache_tokens"),
        "attention_backend": engine.get("attention_backend"),
        "tokens_per_second_published": theirs,
    }


def _notes(serving: Serving, rows: Sequence[_Row]) -> list[str]:
    records = [record for row in rows for record in row.records.values()]
    settings = [record["settings"] for record in records]
    notes = []
    if settings:
        chunk = sorted(
            {f"{each['max_num_batched_tokens']:,}" for each in settings if each.get("max_num_batched_tokens")}
        )
        inputs = [f"{tokens:,}" for tokens in sorted({each["input_tokens"] for each in settings})]
        outputs = [f"{tokens:,}" for tokens in sorted({each["output_tokens"] for each in settings})]
        requests = sorted({each["num_prompts"] for each in settings if each.get("num_prompts")})
        counts = f"{requests[0]:,}" + (f" to {requests[-1]:,}" if len(requests) > 1 else "") if requests else "all"
        notes.append(
            f"{counts} requests of {enumeration(inputs)} input and {enumeration(outputs)} forced output tokens, all sent "
            f"at once; chunked prefill of {enumeration(chunk)} tokens, no prefix caching."
        )
    notes.append(
        "limit: the FLOPs of such a request in the baseline over those in the variant (swiftkv.cost). It holds where "
        "compute is the bottleneck; a variant with a smaller cache can pass it where memory keeps the baseline's "
        "batches small."
    )
    if any(row.published for row in rows):
        notes.append(f"published: {enumeration(sorted({row.published['source'] for row in rows if row.published}))}.")
    return notes
