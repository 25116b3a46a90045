"""Combined throughput as a table: under memory limits (Table 5), and beside compression alone (the blog's Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import MISSING, Published, Record, read_published
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Cell,
    Serving,
    length_label,
    on_paper_hardware,
    ratio,
    read_serving,
    serving_kind,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, show


@dataclass(frozen=True)
class _Row:
    """One printed line: a model at a point, its cells, and the published row, if it may stand there."""

    head: dict[str, str]
    cells: Sequence[Cell]
    published: Published

    @property
    def records(self) -> list[Record]:
        """Those that there are."""
        return [cell.record for cell in self.cells if cell.record.exists]

    def print(self, text: Callable[[Cell], str], shown: Callable[[Cell], bool] = lambda cell: True) -> dict[str, str]:
        """The line, one column a case."""
        return self.head | {cell.serving.label(cell.case): text(cell) for cell in self.cells if shown(cell)}


def make(entry: Entry, files: Files) -> Table:
    """Throughput, speed-up beside its limit by FLOPs, and KV tokens; one row a model and point.

    Published rows are those of the model with this memory limit or input length. They stand below ours where the
    paper's model ran on as many H100s as the paper's did (one, where its table does not say).
    """
    serving = read_serving(entry, files, "throughput")
    published = read_published(files.get("published", ()))
    rows = [_row(serving.cells(model, point), published) for model in serving.models for point in serving.points]
    footnotes = Footnotes()

    def speed(cell: Cell) -> str:
        value = cell.record.throughput
        return f"{cell.record.blank} {footnotes.mark(cell.record.why)}" if value is None else show(value, 3)

    def capacity(cell: Cell) -> str:
        if tokens := cell.record.engine.get("kv_cache_tokens"):
            return f"{tokens:,}"
        return cell.record.blank + (f" {footnotes.mark('the engine did not report it')}" if cell.record.ok else "")

    speeds, rules = [], []
    for row in rows:
        if speeds and any(row.published for row in rows):
            rules.append(len(speeds))
        speeds.append(row.print(speed))
        if row.published:
            empty = dict.fromkeys(row.head, "") | {next(iter(row.head)): "published"}
            speeds.append(row.print(lambda cell, theirs=row.published: _published(theirs, cell.case)) | empty)
    panels = [Panel(pd.DataFrame(speeds), "(a) Input and output tokens a second", tuple(rules))]
    if any(case != BASELINE for case in serving.cases):
        gains = pd.DataFrame([row.print(_gain, lambda cell: cell.case != BASELINE) for row in rows])
        panels.append(Panel(gains, "(b) Speed-up over the baseline (limit: by FLOPs)"))
    capacities = pd.DataFrame([row.print(capacity) for row in rows])
    panels.append(Panel(capacities, "(c) Tokens that fit into the KV cache, as vLLM reports them"))
    values = pd.DataFrame([_line(cell, row.published) for row in rows for cell in row.cells])
    notes = [*_notes(serving, rows), *entry.get("notes", []), *footnotes.lines()]
    return Table(entry["name"], serving.heading, values, panels, notes)


def published_column(case: Case) -> str:
    """The column of a case in the published files: swiftkv-50-across4 with FP8 is swiftkv_50_across4_fp8."""
    return case.variant.replace("-", "_") + ("_fp8" if case.kv_cache == "fp8" else "")


def _row(cells: Sequence[Cell], published: Sequence[Published]) -> _Row:
    serving, model, settings = cells[0].serving, cells[0].model, cells[0].settings
    if serving.entry["head"] == "memory":
        key, place = "memory_gb", settings.get("memory_gib")
        head = {"Memory": "not limited" if place is None else f"{place:g} GB"}
    else:
        key, place = "input_length", length_label(settings["input_tokens"])
        head = {"Input": place}
    row = _Row(cells[0].title | head, cells, {})
    for theirs in published:
        same = theirs["model"] == serving.model(model)["published"] and place is not None and theirs.get(key) == place
        if same and on_paper_hardware(row.records, theirs.get("gpus") or 1):
            return _Row(row.head, cells, theirs)
    return row


def _published(theirs: Published, case: Case) -> str:
    value = theirs.get(published_column(case))
    return MISSING if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def _gain(cell: Cell) -> str:
    if cell.record.throughput is None:
        return cell.record.blank
    if cell.speedup is None:
        return f"– (baseline {cell.base.blank})"
    bound = cell.record.limit()
    return f"{cell.speedup:.2f}×" + (f" (limit {bound:.2f}×)" if bound else "")


def _line(cell: Cell, published: Published) -> dict[str, Any]:
    """A line of the CSV: one model, point and case."""
    record, settings, bound = cell.record, cell.settings, cell.record.limit()
    theirs, their_base = (published.get(published_column(case)) for case in (cell.case, BASELINE))
    numbers = isinstance(theirs, float) and isinstance(their_base, float)
    return cell.head(record.throughput) | {
        "weights": record.weights,
        "conditions": record.conditions(),
        "devices": record.devices,
        "memory_gb": settings.get("memory_gib"),
        "memory": record.settings.get("memory"),
        "input_tokens": settings["input_tokens"],
        "output_tokens": settings.get("output_tokens"),
        "num_prompts": record.settings.get("num_prompts"),
        "tokens_per_second": record.throughput,
        "normalized_tflops_per_gpu": record.value("normalized_tflops_per_gpu"),
        "speedup": cell.speedup,
        "speedup_limit": bound,
        "fraction_of_limit": ratio(cell.speedup, bound),
        "kv_cache_tokens": record.engine.get("kv_cache_tokens"),
        "attention_backend": record.engine.get("attention_backend"),
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
    settings = [record.settings for row in rows for record in row.records]
    if settings:

        def listed(name: str) -> str:
            return enumeration(
                [f"{value:,}" for value in sorted({asked[name] for asked in settings if asked.get(name)})]
            )

        requests = sorted({asked["num_prompts"] for asked in settings if asked.get("num_prompts")})
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


KIND = serving_kind("table", make, own={"head": Literal["memory", "input_tokens"]})
