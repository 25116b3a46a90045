"""Combined throughput by input length, as bars: Figure 3, and the blog's Figures 3 and 4 for a whole node."""

from __future__ import annotations

import textwrap
from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    PAGE,
    Bar,
    Drawing,
    draw_bars,
    handle,
    headline,
    legend,
    limit_handle,
    new_figure,
)
from pipeline.artifacts.kind import Entry, Files
from pipeline.artifacts.records import Record
from pipeline.artifacts.serving import (
    BASELINE,
    Cell,
    Serving,
    length_label,
    ratio,
    read_serving,
    serving_kind,
)
from swiftkv.section import Whole


def make(entry: Entry, files: Files) -> Drawing:
    """Bars of every model (a column) and quantity (a row); one model alone has its quantities side by side.

    Without `node_gpus` the quantities are tokens a second and normalized TFLOP/s a device: the tokens a second times
    twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With it, it is the tokens a second of a
    node of so many GPUs, each group of them serving a replica.
    """
    serving, node = read_serving(entry, files, "throughput"), entry.get("node_gpus")
    claims = serving.claims(files)
    on_gpus = any(record.gpus for record in serving.records)
    panels = {"tokens_per_second": f"Tokens / s on {node} GPUs" if node and on_gpus else "Input and output\ntokens / s"}
    if not node:
        panels["normalized_tflops_per_gpu"] = f"Normalized\nTFLOP/s per {'GPU' if on_gpus else 'device'}"
    models, single = serving.models, len(serving.models) == 1
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    above, titles = serving.captions()
    rows, columns = (1, len(panels)) if single else (len(panels), len(models))
    figure = new_figure(PAGE, (1.1 if single else 1.4) + 1.75 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, (quantity, label) in enumerate(panels.items()):
        for column, model in enumerate(models):
            axis = axes[0, number] if single else axes[number, column]
            bars = {
                case: [_bar(Cell(serving, model, point, case), quantity, node) for point in serving.points]
                for case in serving.cases
            }
            draw_bars(axis, groups, [(serving.look(case), own) for case, own in bars.items()])
            axis.set_ylabel(label if single or column == 0 else "")
            axis.set_xlabel("Input tokens" if single or number == len(panels) - 1 else "")
    for model, axis in zip(models, axes[0], strict=False):
        lines = [part for line in titles.get(model, []) for part in textwrap.wrap(line, 84 // len(models))]
        axis.set_title("\n".join(lines))
    headline(figure, *above)
    cases = [handle(serving.look(case), serving.label(case), bars=True) for case in serving.cases]
    legend(figure, [*cases, limit_handle()], [claim["text"] for claim in claims], serving.notes)
    return Drawing(figure, serving.with_claims(frame(serving, node), claims))


def frame(serving: Serving, node_gpus: int | None = None) -> pd.DataFrame:
    """What the bars show: one row a model, point and case; `status` is ok, oom, unavailable or missing.

    `tokens_per_second_limit` is the baseline's measured throughput times the speed-up that the FLOP count allows.
    `exact_tflops_per_gpu` counts the baseline's FLOPs of these requests, attention included. With `node_gpus`,
    `speedup_over_first_model` is the node's throughput over that of the first model's baseline at the same input length
    on the same kind of device with the same vLLM.
    """
    return pd.DataFrame([_line(cell, node_gpus) for cell in serving.cells()])


def _line(cell: Cell, node_gpus: int | None) -> dict[str, Any]:
    record, bound = cell.record, cell.record.limit()
    value, base = record.throughput, cell.base.throughput
    line = cell.head(value) | {
        "input_tokens": cell.settings["input_tokens"],
        "output_tokens": cell.settings.get("output_tokens"),
        "num_prompts": record.settings.get("num_prompts"),
        "devices": record.devices,
        "conditions": record.conditions(),
        "tokens_per_second": value,
        "tokens_per_second_limit": base * bound if base and bound else None,
        "tokens_per_second_per_gpu": ratio(value, record.devices),
        **{name: record.value(name) for name in ("normalized_tflops_per_gpu", "exact_tflops_per_gpu", "mfu_percent")},
        **cell.speedups,
        "total_tokens": cell.settings.get("total_tokens"),
    }
    if not node_gpus:
        return line | _errors(record, line)
    first = cell.serving.find(cell.point, cell.serving.models[0], BASELINE)
    whole, of_first = (one.throughput and one.throughput * replicas(one, node_gpus) for one in (record, first))
    alike = record.exists and first.exists and _platform(record) == _platform(first)
    line |= {
        "replicas": replicas(record, node_gpus) if record.exists else None,
        "node_tokens_per_second": whole,
        "speedup_over_first_model": ratio(whole, of_first) if alike else None,
    }
    return line | _errors(record, line)


def _errors(record: Record, line: dict[str, Any]) -> dict[str, float | None]:
    """The standard errors of what is the record's throughput in several units."""
    names = ("tokens_per_second", "tokens_per_second_per_gpu", "normalized_tflops_per_gpu", "mfu_percent")
    shown = {name: line.get(name) for name in (*names, "node_tokens_per_second") if name in line}
    scatter = record.scatter
    return {f"{name}_stderr": scatter * value if scatter and value else None for name, value in shown.items()}


def replicas(record: Record, node_gpus: int | None) -> float:
    """Servers like this one that a node holds; 1 on a processor, and where no node is asked about."""
    return node_gpus / record.devices if node_gpus and record.gpus else 1.0


def _platform(record: Record) -> tuple[Any, ...]:
    return record.device, record.engine.get("vllm"), record.engine.get("compilation")


def _bar(cell: Cell, quantity: str, node_gpus: int | None) -> Bar:
    record, bound, value = cell.record, cell.record.limit(), cell.record.value(quantity)
    if value is None:
        return Bar(None, note=record.blank)
    value *= replicas(record, node_gpus)
    if cell.case == BASELINE or cell.speedup is None:
        return Bar(value)
    reference = (cell.base.value(quantity) or 0) * replicas(cell.base, node_gpus)
    limit = reference * bound if reference and bound else None
    error = None if cell.speedup_stderr is None else cell.speedup_stderr * reference
    return Bar(value, limit, cell.times.replace(" ±", "\n±"), error=error)


KIND = serving_kind("figure", make, own={"node_gpus": Whole}, optional=("node_gpus",))
