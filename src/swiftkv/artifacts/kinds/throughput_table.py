"""Combined throughput as a table: under memory limits (Table 5), and beside compression alone (the blog's Table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING, Record, read_published
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    absent,
    conditions,
    devices,
    engine,
    heading,
    length_label,
    limit,
    on_paper_hardware,
    ratio,
    read_serving,
    status,
    throughput,
    value_of,
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


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """Throughput, speed-up beside its limit by FLOPs, and KV tokens; one row a model and point.

    Published rows are those of the model with this memory limit or input length. They stand below ours where the
    paper's model ran on as many H100s as the paper's did (one, where its table does not say).
    """
    serving = read_serving(entry, files, "throughput")
    theirs = read_published(files.get("published", ()))
    rows = [_row(serving, model, point, theirs) for model in serving.models for point in serving.points]
    footnotes = Footnotes()
    values = [_values(serving, row, case) for row in rows for case in serving.cases]
    panels = [
        Panel(*_speeds(serving, rows, footnotes)),
        Panel(pd.DataFrame([_capacity(serving, row, footnotes) for row in rows]),
              "(c) Tokens that fit into the KV cache, as vLLM reports them"),
    ]  # fmt: skip
    if any(case != BASELINE for case in serving.cases):
        gains = pd.DataFrame([_gains(serving, row) for row in rows])
        panels.insert(1, Panel(gains, "(b) Speed-up over the baseline (limit: by FLOPs)"))
    notes = [*_notes(serving, rows), *entry.get("notes", []), *footnotes.lines()]
    return Table(entry["name"], heading(serving), pd.DataFrame(values), panels, notes)


def published_column(case: Case) -> str:
    """The column of a case in the published files: swiftkv-50-across4 with FP8 is swiftkv_50_across4_fp8."""
    return case.variant.replace("-", "_") + ("_fp8" if case.kv_cache == "fp8" else "")


def _row(serving: Serving, model: str, point: str, theirs: Sequence[Record]) -> _Row:
    settings = serving.entry["points"][point]
    found = {case: record for case in serving.cases if (record := serving.find(point, model, case))}
    length = length_label(settings["input_tokens"])
    if serving.entry["head"] == "memory":
        key, mine = "memory_gb", settings.get("memory_gib")
        head = {"Memory": f"{mine:g} GB" if mine is not None else "not limited"}
    else:
        key, mine, head = "input_length", length, {"Input": length}
    published = [
        row
        for row in theirs
        if row["model"] == serving.published_name(model)
        and mine is not None
        and row.get(key) == mine
        and on_paper_hardware(list(found.values()), row.get("gpus") or 1)
    ]
    title = {"Model": serving.title(model)} if len(serving.models) > 1 else {}
    return _Row(model, point, title | head, found, next(iter(published), None))


def _speeds(serving: Serving, rows: Sequence[_Row], footnotes: Footnotes) -> tuple[pd.DataFrame, str, tuple[int, ...]]:
    """Panel (a): throughput, the published row below ours."""
    printed, rules = [], []
    any_published = any(row.published for row in rows)
    for row in rows:
        if printed and any_published:
            rules.append(len(printed))
        cells = {serving.label(case): _speed(serving, row, case, footnotes) for case in serving.cases}
        printed.append({**row.head, **cells})
        if row.published:
            head = dict.fromkeys(row.head, "") | {next(iter(row.head)): "published"}
            theirs = {serving.label(case): _published(row.published, case) for case in serving.cases}
            printed.append({**head, **theirs})
    return pd.DataFrame(printed), "(a) Input and output tokens a second", tuple(rules)


def _speed(serving: Serving, row: _Row, case: Case, footnotes: Footnotes) -> str:
    value = throughput(row.records.get(case))
    if value is not None:
        return show(value, 3)
    return f"{absent(row.records.get(case))} {footnotes.mark(serving.reason(row.point, row.model, case))}"


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
        tokens = engine(record, "kv_cache_tokens") if record else None
        if tokens:
            text = f"{tokens:,}"
        elif status(record) == "ok":
            text = f"{MISSING} {footnotes.mark('the engine did not report it')}"
        else:
            text = absent(record)
        cells[serving.label(case)] = text
    return {**row.head, **cells}


def _values(serving: Serving, row: _Row, case: Case) -> dict[str, Any]:
    """A line of the CSV: one model, point and case."""
    record = row.records.get(case)
    settings = serving.entry["points"][row.point]
    gain, bound = ratio(throughput(record), throughput(row.baseline)), limit(record)
    theirs = (row.published or {}).get(published_column(case))
    their_base = (row.published or {}).get(published_column(BASELINE))
    numbers = isinstance(theirs, float) and isinstance(their_base, float)
    return {
        "model": row.model,
        "title": serving.title(row.model),
        "point": row.point,
        "variant": case.variant,
        "kv_cache": case.kv_cache,
        "status": status(record),
        "reason": None if throughput(record) is not None else serving.reason(row.point, row.model, case),
        "weights": record["weights"] if record else None,
        "conditions": conditions([record]) if record else None,
        "devices": devices(record) if record else None,
        "memory_gb": settings.get("memory_gib"),
        "memory": record["settings"].get("memory") if record else None,
        "input_tokens": settings["input_tokens"],
        "output_tokens": settings.get("output_tokens"),
        "num_prompts": record["settings"].get("num_prompts") if record else None,
        "tokens_per_second": throughput(record),
        "normalized_tflops_per_gpu": value_of(record, "normalized_tflops_per_gpu"),
        "speedup": gain,
        "speedup_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
        "kv_cache_tokens": engine(record, "kv_cache_tokens") if record else None,
        "attention_backend": engine(record, "attention_backend") if record else None,
        "tokens_per_second_published": theirs,
        "speedup_published": theirs / their_base if numbers else None,
    }


def _notes(serving: Serving, rows: Sequence[_Row]) -> list[str]:
    notes = []
    if serving.entry["head"] == "memory":
        notes.append(
            "Memory is the stated limit for weights and KV cache, on a GPU for activations too; GB here are 2^30 bytes. "
            "OOM: nothing is left for a KV cache that holds one request."
        )
    settings = [record["settings"] for row in rows for record in row.records.values()]
    if settings:

        def listed(name: str) -> str:
            return enumeration([f"{value:,}" for value in sorted({each[name] for each in settings if each.get(name)})])

        requests = sorted({each["num_prompts"] for each in settings if each.get("num_prompts")})
        counts = f"{requests[0]:,}" + (f" to {requests[-1]:,}" if len(requests) > 1 else "") if requests else "all"
        notes.append(
            f"{counts} request{'' if counts == '1' else 's'} of {listed('input_tokens')} input and "
            f"{listed('output_tokens')} forced output tokens, all sent at once; "
            f"chunked prefill of {listed('max_num_batched_tokens')} tokens, no prefix caching."
        )
    notes.append(
        "limit: the FLOPs of such a request in the baseline over those in the variant (swiftkv.cost). It holds where "
        "compute is the bottleneck; a variant with a smaller cache can pass it where memory keeps the baseline's "
        "batches small."
    )
    if any(row.published for row in rows):
        notes.append(f"published: {enumeration(sorted({row.published['source'] for row in rows if row.published}))}.")
    return notes


KIND = Kind(
    "table",
    ("models", "variants", "points"),
    needs,
    make,
    own={"head": Literal["memory", "input_tokens"]},
)
