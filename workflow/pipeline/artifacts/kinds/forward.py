"""Time of a forward pass by tokens in the batch: Figure 2, beside SimScore, and the same over short prompts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    LIMIT,
    LIMIT_CURVE,
    PAGE,
    Drawing,
    handle,
    headline,
    legend,
    line_entry,
    look,
    new_figure,
    wide_axis,
)
from pipeline.artifacts.inputs import players
from pipeline.artifacts.kind import Config, Entry, Files
from pipeline.artifacts.kinds.similarity import (
    ROLES,
    draw_simscores,
    read_similarity,
    similar,
    simscores,
)
from pipeline.artifacts.records import Record, read_statements
from pipeline.artifacts.serving import (
    BASELINE,
    Cell,
    Serving,
    length_label,
    ratio,
    read_serving,
    serving_kind,
)
from pipeline.statistics import mean_of_turns


def _extra(config: Config, entry: Entry) -> dict[str, Any]:
    return similar(config, players(config, entry.get("similar_models", [])))


def make(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch; to their left SimScore, if asked for.

    Thin lines are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows.
    """
    serving = read_serving(entry, files, "forward_time")
    data = frame(serving).assign(panel="forward")
    models = entry.get("similar_models")
    records = read_similarity(entry, files) if models else {}
    curves = simscores(models or [], records, read_statements(entry, files))
    notes = serving.notes
    figure = new_figure(PAGE, 3.3 if models else 2.9, notes)
    axes = figure.subplots(1, 3 if models else 2, width_ratios=(1.25, 1, 1) if models else (1, 1))
    times, gains = axes[-2:]
    if models:
        draw_simscores(axes[0], entry, models, curves)
        data = pd.concat([curves.assign(panel="simscore"), data], ignore_index=True)
    _curves(times, gains, serving, data[data["panel"] == "forward"])
    headline(figure, *serving.captions()[0])
    labels = [handle(look(*cell.case), _label(cell)) for cell in serving.cells()]
    line = line_entry(LIMIT, color="black", linewidth=0.8, linestyle=LIMIT_CURVE)
    legend(figure, [*labels, line], notes=notes)
    return Drawing(figure, data)


def frame(serving: Serving) -> pd.DataFrame:
    """What the panels show: median milliseconds of a forward pass by tokens in the batch and case.

    `milliseconds_limit` is the baseline's time divided by `speedup_limit`, the prefill speed-up that the FLOP count
    allows at the largest batch.
    """
    return pd.DataFrame([line for cell in serving.cells() for line in _lines(cell)])


def _lines(cell: Cell) -> list[dict[str, Any]]:
    record, bound = cell.record, cell.record.limit("prefill_speedup_limit")
    base, median, fastest = _times(cell.base), _times(record), _times(record, "min")
    gains: dict[int | None, tuple[float | None, float | None]] = {}
    for place, tokens in enumerate(median):
        turns = record.speedups(place=place)
        gains[tokens] = mean_of_turns(turns) if turns else (ratio(base.get(tokens), median[tokens]), None)
    return [
        cell.head(median)
        | {
            "conditions": record.conditions(),
            "batch_tokens": tokens,
            "milliseconds": _milli(median.get(tokens)),
            "milliseconds_min": _milli(fastest.get(tokens)),
            "milliseconds_limit": _milli(ratio(base.get(tokens), bound)),
            **dict(zip(("speedup", "speedup_stderr"), gains.get(tokens, (None, None)), strict=True)),
            "speedup_limit": bound,
            "what": record.value("what"),
        }
        for tokens in median or [None]
    ]


def _times(record: Record, statistic: str = "median") -> dict[int, float]:
    """Seconds by tokens in the batch."""
    seconds = (record.value("seconds") or {}).get(statistic)
    return dict(zip(record.value("batch_tokens"), seconds, strict=True)) if seconds else {}


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _label(cell: Cell) -> str:
    return cell.serving.label(cell.case) + ("" if _times(cell.record) else f": {cell.record.blank}")


def _curves(times, gains, serving: Serving, data: pd.DataFrame) -> None:
    gains.axhline(1, color="black", linewidth=0.8, zorder=0)
    if data["speedup"].isna().all():
        gains.text(0.5, 0.6, "no baseline to compare with", transform=gains.transAxes, ha="center", fontsize=7)
    for case in serving.cases:
        curve = data[(data["variant"] == case.variant) & (data["kv_cache"] == case.kv_cache)].dropna(
            subset="batch_tokens"
        )
        if not len(curve):
            continue
        appearance = look(*case)
        style = {"color": appearance.color, "marker": appearance.marker, "linestyle": appearance.line}
        times.plot(curve["batch_tokens"], curve["milliseconds"], **style)
        if case == BASELINE or curve["speedup"].isna().all():
            continue
        gains.plot(curve["batch_tokens"], curve["speedup"], **style)
        thin = {"color": appearance.color, "linewidth": 0.8}
        if curve["speedup_stderr"].notna().any():
            error = curve["speedup_stderr"].astype(float)
            gains.errorbar(curve["batch_tokens"], curve["speedup"], error, fmt="none", capsize=1.5, **thin)
        if curve["speedup_limit"].notna().all():
            times.plot(curve["batch_tokens"], curve["milliseconds_limit"], linestyle=LIMIT_CURVE, **thin)
            gains.axhline(curve["speedup_limit"].iloc[0], linestyle=LIMIT_CURVE, **thin)
    drawn = data.dropna(subset="milliseconds")
    for axis in (times, gains):
        wide_axis(axis.xaxis, drawn["batch_tokens"])
        sizes = sorted(int(tokens) for tokens in drawn["batch_tokens"].unique())
        axis.set_xticks(sizes, [length_label(tokens) for tokens in sizes], rotation=45)
        axis.set_xlabel("Tokens in the batch")
    wide_axis(times.yaxis, drawn["milliseconds"])
    times.set_ylabel("Time of a forward pass (ms)")
    gains.set_ylabel("Speed-up over the baseline\n(below 1: slower)")
    gains.set_ylim(max(0.0, gains.get_ylim()[0]))
    gains.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")


KIND = serving_kind(
    "figure",
    make,
    needs=("serving", "similarity"),
    own={"similar_models": ROLES},
    optional=("similar_models",),
    exactly={"models": 1, "points": 1},
    extra=_extra,
)
