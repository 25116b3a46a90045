"""Combined throughput as a table: under memory limits (Table 5), and beside compression alone (the blog's Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pipeline.artifacts.columns import Column, Line, across, grid, models, table
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.records import MISSING, Published, read_published
from pipeline.artifacts.serving import (
    BASELINE,
    Case,
    Cell,
    length_label,
    on_paper_hardware,
    read_serving,
    serving_kind,
)
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits


def make(entry: Entry, files: Files) -> Table:
    """Throughput, speed-up beside its limit by FLOPs, and KV tokens; one row a model and point.

    Published rows are those of the model with this memory limit or input length. They stand below ours where the
    paper's model ran on as many H100s as the paper's did (one, where its table does not say).
    """
    serving, footnotes = read_serving(entry, files, "throughput"), Footnotes()
    published = read_published(files.get("published", ()))
    lines, beside = [], False
    for model in serving.models:
        for point in serving.points:
            cells = serving.cells(model, point)
            key, place, head = _place(cells[0])
            theirs = _beside(cells, key, place, published)
            beside |= bool(theirs)
            below = ("published", None) if theirs else None
            line = cells[0].place | {"_head": head, "_below": below}
            lines.append(line | {cell.case: _line(cell, theirs) for cell in cells})

    def capacity(line: Line) -> str:
        if tokens := line["kv_cache_tokens"]:
            return f"{tokens:,}"
        record = line["_cell"].record
        return record.blank + (f" {footnotes.mark('the engine did not report it')}" if record.ok else "")

    head = [*models(lines), Column("Memory" if entry["head"] == "memory" else "Input", "_head")]
    labels = {case: serving.label(case) for case in serving.cases}
    speed = Column("", "tokens_per_second", digits(3), why="reason", below=_published)
    caption = "(a) Input and output tokens a second"
    panels = [grid(lines, head + across(speed, labels), footnotes, caption, lambda line: beside and id(line))]
    alone = [line | {"_below": None} for line in lines]
    compared = {case: label for case, label in labels.items() if case != BASELINE}
    for caption, text, shown in (
        ("(b) Speed-up over the baseline (limit: by FLOPs)", _gain, compared),
        ("(c) Tokens that fit into the KV cache, as vLLM reports them", capacity, labels),
    ):
        if shown:
            panels.append(grid(alone, head + across(Column("", text), shown), footnotes, caption, lambda line: None))
    values = [line[case] for line in lines for case in labels]
    return table(entry, values, panels, entry.get("notes", []), footnotes, serving.heading)


def published_column(case: Case) -> str:
    """The column of a case in the published files: swiftkv-50-across4 with FP8 is swiftkv_50_across4_fp8."""
    return case.variant.replace("-", "_") + ("_fp8" if case.kv_cache == "fp8" else "")


def _place(cell: Cell) -> tuple[str, Any, str]:
    """What tells the rows apart: its published column, its value there, and how it is printed."""
    if cell.serving.entry["head"] == "memory":
        limit = cell.settings.get("memory_gib")
        return "memory_gb", limit, "not limited" if limit is None else f"{limit:g} GB"
    length = length_label(cell.settings["input_tokens"])
    return "input_length", length, length


def _beside(cells: Sequence[Cell], key: str, place: Any, published: Sequence[Published]) -> Published:
    """The published row that may stand beside a model's cells at a point; empty where there is none."""
    name = cells[0].serving.model(cells[0].model)["published"]
    ran = [cell.record for cell in cells if cell.record.exists]
    rows = [row for row in published if row["model"] == name and place is not None and row.get(key) == place]
    return next((row for row in rows if on_paper_hardware(ran, row.get("gpus") or 1)), {})


def _published(line: Line) -> str:
    value = line["tokens_per_second_published"]
    return MISSING if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def _gain(line: Line) -> str:
    cell = line["_cell"]
    if cell.record.throughput is None:
        return cell.record.blank
    if cell.speedup is None:
        return f"– (baseline {cell.base.blank})"
    bound = cell.record.limit()
    return cell.times + (f" (limit {bound:.2f}×)" if bound else "")


def _line(cell: Cell, published: Published) -> dict[str, Any]:
    """A line of the CSV: one model, point and case."""
    record, settings = cell.record, cell.settings
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
        "tokens_per_second_stderr": record.scatter and record.throughput * record.scatter,
        "normalized_tflops_per_gpu": record.value("normalized_tflops_per_gpu"),
        **cell.speedups,
        "kv_cache_tokens": record.engine.get("kv_cache_tokens"),
        "attention_backend": record.engine.get("attention_backend"),
        "tokens_per_second_published": theirs,
        "speedup_published": theirs / their_base if numbers else None,
        "_cell": cell,
    }


KIND = serving_kind("table", make, own={"head": Literal["memory", "input_tokens"]})
