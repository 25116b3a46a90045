"""Combined throughput by input length, as bars: Figure 3, and the blog's Figures 3 and 4 for a whole node."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.drawing import (
    PAGE,
    STYLE,
    Bar,
    Drawing,
    draw_bars,
    handle,
    headline,
    legend,
    limit_handle,
    look,
)
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    absent,
    captions,
    conditions,
    device_name,
    devices,
    engine,
    gpus,
    length_label,
    limit,
    ratio,
    read_claims,
    read_serving,
    status,
    throughput,
    value_of,
    with_claims,
)
from swiftkv.section import Whole


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    return {"serving": paths.serving(config, entry)}


def make(entry: Entry, files: Files) -> Drawing:
    """Bars of every model (a column) and quantity (a row); one model alone has its quantities side by side.

    Without `node_gpus` the quantities are tokens a second and normalized TFLOP/s a device: the tokens a second times
    twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With it, it is the tokens a second of a
    node of so many GPUs, each group of them serving a replica.
    """
    serving, node = read_serving(entry, files, "throughput"), entry.get("node_gpus")
    claims = read_claims(serving, files)
    data = frame(serving, node)
    on_gpus = any(gpus(record) for record in serving.records)
    if node:
        label = f"Tokens / s on {node} GPUs" if on_gpus else "Input and output\ntokens / s"
        panels = [(label, "tokens_per_second", lambda record: replicas(record, node))]
    else:
        label = f"Normalized\nTFLOP/s per {'GPU' if on_gpus else 'device'}"
        panels = [
            ("Input and output\ntokens / s", "tokens_per_second", lambda record: 1.0),
            (label, "normalized_tflops_per_gpu", lambda record: 1.0),
        ]
    models, single = serving.models, len(serving.models) == 1
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    above, titles = captions(serving)
    with matplotlib.rc_context(STYLE):
        rows, columns = (1, len(panels)) if single else (len(panels), len(models))
        figure = Figure(figsize=(PAGE, (1.1 if single else 1.4) + 1.75 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for number, (label, quantity, factor) in enumerate(panels):
            for column, model in enumerate(models):
                axis = axes[0, number] if single else axes[number, column]
                series = [
                    (look(*case), [_bar(serving, point, model, case, quantity, factor) for point in serving.points])
                    for case in serving.cases
                ]
                draw_bars(axis, groups, series)
                axis.set_ylabel(label if single or column == 0 else "")
                axis.set_xlabel("Input tokens" if single or number == len(panels) - 1 else "")
        for model, axis in zip(models, axes[0], strict=False):
            lines = [part for line in titles.get(model, []) for part in textwrap.wrap(line, 84 // len(models))]
            axis.set_title("\n".join(lines))
        headline(figure, *above)
        cases = [handle(look(*case), serving.label(case), bars=True) for case in serving.cases]
        notes = [*entry.get("notes", []), *serving.absences()]
        legend(figure, [*cases, limit_handle()], [claim["text"] for claim in claims], notes)
    return Drawing(figure, with_claims(data, claims))


def frame(serving: Serving, node_gpus: int | None = None) -> pd.DataFrame:
    """What the bars show: one row a model, point and case; `status` is ok, oom, unavailable or missing.

    `tokens_per_second_limit` is the baseline's measured throughput times the speed-up that the FLOP count allows.
    `exact_tflops_per_gpu` counts the baseline's FLOPs of these requests, attention included. With `node_gpus`,
    `speedup_over_first_model` is the node's throughput over that of the first model's baseline at the same input length
    on the same kind of device with the same vLLM.
    """
    rows = []
    for model in serving.models:
        for point, settings in serving.entry["points"].items():
            base = throughput(serving.find(point, model, BASELINE))
            first = serving.find(point, serving.models[0], BASELINE)
            for case in serving.cases:
                record = serving.find(point, model, case)
                value, bound = throughput(record), limit(record)
                row = {
                    "model": model,
                    "title": serving.title(model),
                    "point": point,
                    "variant": case.variant,
                    "kv_cache": case.kv_cache,
                    "status": status(record),
                    "reason": None if value is not None else serving.reason(point, model, case),
                    "input_tokens": settings["input_tokens"],
                    "devices": devices(record) if record else None,
                    "conditions": conditions([record]) if record else None,
                    "tokens_per_second": value,
                    "tokens_per_second_limit": base * bound if base and bound else None,
                    "tokens_per_second_per_gpu": ratio(value, devices(record)) if record else None,
                    "normalized_tflops_per_gpu": value_of(record, "normalized_tflops_per_gpu"),
                    "exact_tflops_per_gpu": value_of(record, "exact_tflops_per_gpu"),
                    "mfu_percent": value_of(record, "mfu_percent"),
                    "speedup": ratio(value, base),
                    "speedup_limit": bound,
                    "fraction_of_limit": ratio(ratio(value, base), bound),
                }
                if node_gpus:
                    whole = _node(record, node_gpus)
                    row["replicas"] = replicas(record, node_gpus) if record else None
                    row["node_tokens_per_second"] = whole
                    alike = record and first and _platform(record) == _platform(first)
                    row["speedup_over_first_model"] = ratio(whole, _node(first, node_gpus)) if alike else None
                rows.append(row)
    return pd.DataFrame(rows)


def replicas(record: Record, node_gpus: int) -> float:
    """Servers like this one that a node holds; 1 on a processor."""
    return node_gpus / devices(record) if gpus(record) else 1.0


def _node(record: Record | None, node_gpus: int) -> float | None:
    value = throughput(record)
    return None if record is None or value is None else value * replicas(record, node_gpus)


def _platform(record: Record) -> tuple[Any, ...]:
    return device_name(record), engine(record, "vllm"), engine(record, "compilation")


def _bar(serving: Serving, point: str, model: str, case: Case, quantity: str, factor: Any) -> Bar:
    record, base = serving.find(point, model, case), serving.find(point, model, BASELINE)
    value = value_of(record, quantity)
    if value is None:
        return Bar(None, note=absent(record))
    gain, bound = ratio(throughput(record), throughput(base)), limit(record)
    known = case != BASELINE and gain is not None
    reference = (value_of(base, quantity) or 0) * factor(base) if known else 0
    text = f"{gain:.2f}×" if known else ""
    return Bar(value * factor(record), reference * bound if reference and bound else None, text)


KIND = Kind(
    "figure",
    ("models", "variants", "points"),
    needs,
    make,
    own={"node_gpus": Whole},
    optional=("node_gpus",),
)
