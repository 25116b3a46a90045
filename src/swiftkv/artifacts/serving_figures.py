"""Figures of batch inference: Figure 3, the blog's Figures 3 and 4, and Figure 2 with its right half."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from swiftkv.artifacts.figures import PAGE, STYLE, Similarity, simscore_curves, simscore_frame
from swiftkv.artifacts.inputs import Record
from swiftkv.artifacts.plots import (
    LIMIT,
    Bar,
    draw_bars,
    handle,
    headings,
    legend,
    limit_handle,
    look,
    wide_axis,
)
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    absent,
    check_comparable,
    conditions,
    devices,
    length_label,
    limit,
    on_paper_hardware,
    ratio,
    throughput,
)
from swiftkv.errors import UserError


def throughput_frame(serving: Serving, node_gpus: int | None = None) -> pd.DataFrame:
    """What the bars show: one row a model, point and case; `status` is ok, oom or missing.

    `tokens_per_second_limit` is the baseline's measured throughput times the speed-up that the FLOP count allows. With
    `node_gpus`, `node_tokens_per_second` is that of so many GPUs, each group of them serving a replica.
    """
    rows = []
    for model in serving.models:
        for point in serving.points:
            base = throughput(serving.find(point, model, BASELINE))
            for case in serving.cases:
                record = serving.find(point, model, case)
                value, bound = throughput(record), limit(record)
                result = (record or {}).get("result") or {}
                row = {
                    "model": model,
                    "title": serving.title(model),
                    "point": point,
                    "variant": case.variant,
                    "kv_cache": case.kv_cache,
                    "status": record["status"] if record else "missing",
                    "input_tokens": record["settings"]["input_tokens"] if record else None,
                    "conditions": conditions([record]) if record else None,
                    "tokens_per_second": value,
                    "tokens_per_second_limit": base * bound if base and bound else None,
                    "normalized_tflops_per_gpu": result.get("normalized_tflops_per_gpu"),
                    "speedup": ratio(value, base),
                    "speedup_limit": bound,
                    "fraction_of_limit": ratio(ratio(value, base), bound),
                }
                if node_gpus:
                    replicas = _replicas(record, node_gpus) if record else None
                    row["replicas"] = replicas
                    row["node_tokens_per_second"] = value * replicas if value is not None else None
                rows.append(row)
    return pd.DataFrame(rows)


def figure3(serving: Serving) -> tuple[Figure, pd.DataFrame]:
    """Figure 3: combined throughput, and normalized TFLOP/s a device, against input length; one column a model.

    Returns:
        The figure, and its data with the paper's claims below where they apply.

    Raises:
        UserError: records of different hardware or engines in one panel.
    """
    _check(serving, "Figure 3")
    panels = [
        ("Input and output tokens / s", lambda record: 1.0, "tokens_per_second"),
        (f"Normalized TFLOP/s per {_device(serving)}", lambda record: 1.0, "normalized_tflops_per_gpu"),
    ]
    what = "combined throughput by input length (paper's Figure 3)"
    return _bar_figure(serving, "figure3", what, panels, throughput_frame(serving))


def blog_figure3(serving: Serving, node_gpus: int) -> tuple[Figure, pd.DataFrame]:
    """The blog's Figure 3: the throughput of Figure 3 for a node of `node_gpus` GPUs that serve replicas."""
    return _node_figure(serving, "blog_figure3", "combined throughput by input length (blog's Figure 3)", node_gpus)


def blog_figure4(serving: Serving, node_gpus: int) -> tuple[Figure, pd.DataFrame]:
    """The blog's Figure 4: the same for models with FP8 weights, whose titles say so."""
    what = "combined throughput by input length (blog's Figure 4, there with FP8 weights)"
    return _node_figure(serving, "blog_figure4", what, node_gpus)


def _node_figure(serving: Serving, name: str, what: str, node_gpus: int) -> tuple[Figure, pd.DataFrame]:
    _check(serving, f"the blog's Figure {name[-1]}")
    gpus = any(record["hardware"].get("gpus") for model in serving.models for record in serving.of(model))
    label = f"Tokens / s on {node_gpus} GPUs" if gpus else "Input and output tokens / s"
    panels = [(label, lambda record: _replicas(record, node_gpus), "tokens_per_second")]
    return _bar_figure(serving, name, what, panels, throughput_frame(serving, node_gpus))


def _replicas(record: Record, node_gpus: int) -> float:
    """Servers like this one that a node holds; 1 on a processor."""
    return node_gpus / devices(record) if record["hardware"].get("gpus") else 1.0


def _device(serving: Serving) -> str:
    records = [record for model in serving.models for record in serving.of(model)]
    return "GPU" if any(record["hardware"].get("gpus") for record in records) else "device"


def _check(serving: Serving, where: str) -> None:
    for model in serving.models:
        check_comparable(serving.of(model), where)


def claims(serving: Serving, artifact: str) -> list[Mapping[str, Any]]:
    """Published claims about an artifact that may stand beside it: the paper's models, on as many H100 GPUs."""
    found = []
    for (name, model, *_), claim in serving.published.items():
        ours = next((own for own in serving.models if serving.published_names.get(own, own) == model), None)
        if name == artifact and ours and on_paper_hardware(serving.of(ours), claim.get("gpus")):
            found.append(claim)
    return found


def with_claims(data: pd.DataFrame, found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The plotted data, with the published claims as rows of their own where there are some."""
    data = data.assign(row="measured")
    if not found:
        return data
    names = ("model", "input_tokens", "quantity", "low", "high", "text", "source")
    rows = [{"row": "published", **{name: claim.get(name) for name in names}} for claim in found]
    return pd.concat([data, pd.DataFrame(rows)], ignore_index=True)


def _bar_figure(
    serving: Serving,
    name: str,
    what: str,
    panels: Sequence[tuple[str, Callable[[Record], float], str]],
    data: pd.DataFrame,
) -> tuple[Figure, pd.DataFrame]:
    """Bars of every model (a column) and quantity (a row); one model alone has its quantities side by side."""
    models, single = list(serving.models), len(serving.models) == 1
    with matplotlib.rc_context(STYLE):
        rows, columns = (1, len(panels)) if single else (len(panels), len(models))
        figure = Figure(figsize=(PAGE, (1.1 if single else 1.4) + 1.75 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for number, (label, factor, quantity) in enumerate(panels):
            for column, model in enumerate(models):
                axis = axes[0, number] if single else axes[number, column]
                groups = [_length(serving, model, point) for point in serving.points]
                series = [
                    (look(case), [_bar(serving, point, model, case, quantity, factor) for point in serving.points])
                    for case in serving.cases
                ]
                draw_bars(axis, groups, series)
                axis.set_ylabel(label if single or column == 0 else "")
                axis.set_xlabel("Input tokens" if single or number == len(panels) - 1 else "")
        headings(figure, serving, what, None if single else dict(zip(models, axes[0], strict=True)))
        found = claims(serving, name)
        cases = [handle(look(case), serving.label(case), bars=True) for case in serving.cases]
        legend(figure, [*cases, limit_handle()], found)
    return figure, with_claims(data, found)


def _length(serving: Serving, model: str, point: str) -> str:
    record = next(iter(serving.of(model, [point])), None)
    return length_label(record["settings"]["input_tokens"]) if record else point


def _bar(serving: Serving, point: str, model: str, case: Case, quantity: str, factor: Callable) -> Bar:
    record, base = serving.find(point, model, case), serving.find(point, model, BASELINE)
    if throughput(record) is None:
        return Bar(None, note=absent(record))
    value = record["result"].get(quantity)
    if value is None:
        return Bar(None, note=absent(None))
    scale, gain, bound = factor(record), ratio(throughput(record), throughput(base)), limit(record)
    known = case != BASELINE and gain is not None
    reference = (base["result"].get(quantity) or 0) * factor(base) if known else 0
    return Bar(value * scale, reference * bound if reference and bound else None, f"{gain:.2f}×" if known else "")


def forward_frame(serving: Serving) -> pd.DataFrame:
    """What Figure 2 (right) shows: milliseconds of a forward pass by tokens in the batch and case."""
    rows = []
    for model in serving.models:
        for point in serving.points:
            base = _forward(serving.find(point, model, BASELINE))
            for case in serving.cases:
                record = serving.find(point, model, case)
                bound = limit(record, "prefill_speedup_limit")
                head = {"panel": "forward", "model": model, "title": serving.title(model), "variant": case.variant,
                        "kv_cache": case.kv_cache, "status": record["status"] if record else "missing"}  # fmt: skip
                for tokens, seconds in _forward(record).items() or {None: None}.items():
                    gain = ratio(base.get(tokens), seconds)
                    rows.append({
                        **head,
                        "batch_tokens": tokens,
                        "milliseconds": None if seconds is None else 1000 * seconds,
                        "milliseconds_limit": 1000 * base[tokens] / bound if bound and tokens in base else None,
                        "speedup": gain,
                        "speedup_limit": bound,
                        "what": (record["result"] or {}).get("what") if record else None,
                    })  # fmt: skip
    return pd.DataFrame(rows)


def _forward(record: Record | None) -> dict[int, float]:
    """Median seconds by tokens in the batch."""
    if record is None or record["status"] != "ok":
        return {}
    result = record["result"]
    return dict(zip(result["batch_tokens"], result["seconds"]["median"], strict=True))


def figure2(similarities: Sequence[Similarity], serving: Serving) -> tuple[Figure, pd.DataFrame]:
    """Figure 2: SimScore of several models (left), and the time of a forward pass of one model (right).

    The thin line is the baseline's time divided by the prefill speed-up that the FLOP count allows.

    Raises:
        UserError: several models or points on the right, or records of different hardware or engines.
    """
    if len(serving.models) != 1 or len(serving.points) != 1:
        raise UserError("Figure 2 (right) shows one model at one serving point")
    check_comparable(serving.of(serving.models[0]), "Figure 2 (right)")
    left, right = simscore_frame(similarities).assign(panel="simscore"), forward_frame(serving)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.3), layout="constrained")
        first, second = figure.subplots(1, 2)
        simscore_curves(first, left)
        _forward_curves(second, serving, right)
        figure.suptitle("Similarity of layer inputs, and time of a forward pass (paper's Figure 2)", fontsize=8)
    return figure, pd.concat([left, right], ignore_index=True)


def _forward_curves(axis, serving: Serving, data: pd.DataFrame) -> None:
    for case in serving.cases:
        curve = data[(data["variant"] == case.variant) & (data["kv_cache"] == case.kv_cache)]
        record, appearance = serving.find(serving.points[0], serving.models[0], case), look(case)
        label = serving.label(case)
        if not _forward(record):
            axis.plot([], [], color=appearance.color, marker=appearance.marker, label=f"{label}: {absent(record)}")
            continue
        last = curve.iloc[-1]
        if case != BASELINE and pd.notna(last["speedup"]):
            label += f": {last['speedup']:.2f}×"
            label += f" of {last['speedup_limit']:.2f}×" if pd.notna(last["speedup_limit"]) else ""
            axis.plot(curve["batch_tokens"], curve["milliseconds_limit"], color=appearance.color, linewidth=0.7,
                      linestyle=":")  # fmt: skip
        axis.plot(curve["batch_tokens"], curve["milliseconds"], color=appearance.color, marker=appearance.marker,
                  linestyle=appearance.line, label=label)  # fmt: skip
    axis.plot([], [], color="black", linewidth=0.7, linestyle=":", label=f"{LIMIT}; speed-ups at the largest batch")
    drawn = data.dropna(subset="milliseconds")
    wide_axis(axis.xaxis, list(drawn["batch_tokens"]))
    wide_axis(axis.yaxis, list(drawn["milliseconds"]))
    axis.set_xlabel("Tokens in the batch")
    axis.set_ylabel("Time of a forward pass (ms)")
    records = serving.of(serving.models[0])
    title = [serving.title(serving.models[0]), *textwrap.wrap(conditions(records), 62)]
    axis.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), title="\n".join(title), alignment="left", fontsize=6.5)
