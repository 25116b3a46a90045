"""A server under closed loops: all users' tokens a second over one user's, or the time between tokens; not in the paper."""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd

from swiftkv.artifacts.drawing import PAGE, Drawing, handle, headline, legend, line_entry, look, new_figure, wide_axis
from swiftkv.artifacts.kind import Entry, Files
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.serving import Case, Cell, length_label, rate_cells, ratio, read_serving, serving_kind

_TIMES = ("ttft", "tpot", "itl")


def make(entry: Entry, files: Files) -> Drawing:
    """One panel a point of one model; `curve` says which of the two is drawn, the data are of both."""
    serving = read_serving(entry, files, "concurrency")
    (model,) = serving.models
    draw, styles, note = _CURVES[entry["curve"]]
    figure = new_figure(PAGE, 3.2)
    axes = figure.subplots(1, len(serving.points), squeeze=False)[0]
    for axis, point in zip(axes, serving.points, strict=True):
        cells = serving.cells(model, point)
        shown = {cell.case: _lines(cell) for cell in cells if cell.record.ok}
        draw(axis, shown)
        absences = [f"{serving.label(cell.case)}: {cell.record.blank}" for cell in cells if cell.case not in shown]
        axis.text(0.03, 0.03, "\n".join(absences), transform=axis.transAxes, fontsize=6)
        axis.set_title(f"{length_label(cells[0].settings['input_tokens'])} input tokens")
    for axis in axes[1:]:
        axis.set_ylabel("")
    headline(figure, *serving.captions()[0])
    lines = [handle(look(*case), serving.label(case)) for case in serving.cases]
    lines += [line_entry(label, color="0.4", **style) for label, style in styles.items()]
    legend(figure, lines, notes=[note, *serving.notes])
    return Drawing(figure, pd.DataFrame([line for cell in serving.cells() for line in _lines(cell)]))


def _lines(cell: Cell) -> list[dict[str, Any]]:
    """What is measured of a case at a point: one row a concurrency, times in milliseconds.

    `user_tokens_per_second` is that of the median time per output token. Ratios are to the baseline at the same
    concurrency.
    """
    head = cell.place | cell.variant | cell.state(cell.record.ok) | {"conditions": cell.record.conditions()}
    head |= {name: cell.settings[name] for name in ("input_tokens", "output_tokens", "requests_each")}
    base = {each["concurrency"]: each for each in _measured(cell.base)}
    lines = []
    for each in _measured(cell.record) or [{}]:
        names = ("concurrency", "requests", "completed", "failed", "seconds", "tokens_per_second")
        same, total, times = base.get(each.get("concurrency"), {}), each.get("tokens_per_second"), {}
        for metric in _TIMES:
            pairs = [(of.get(f"{metric}_ms") or {}) for of in (each, same)]
            times[f"{metric}_p99_ratio"] = ratio(*(pair.get("p99") for pair in pairs))
        lines.append(
            head
            | {name: each.get(name) for name in names}
            | {
                "tokens_per_second_per_device": ratio(total, cell.record.devices),
                "user_tokens_per_second": ratio(1000.0, each.get("tpot_ms", {}).get("median")) if each else None,
            }
            | rate_cells(each, _TIMES, ("median", "p99"))
            | {"tokens_per_second_ratio": ratio(total, same.get("tokens_per_second"))}
            | times
            | {"request_speedup_limit": cell.record.limit()}
        )
    return lines


def _measured(record: Record) -> list[dict[str, Any]]:
    return record.value("concurrencies") or []


def _pareto(axis, shown: dict[Case, list[dict[str, Any]]]) -> None:
    """Each marker one concurrency, written beside the first curve's."""
    for number, (case, lines) in enumerate(shown.items()):
        appearance = look(*case)
        x, y = ([line[name] for line in lines] for name in ("user_tokens_per_second", "tokens_per_second_per_device"))
        axis.plot(x, y, color=appearance.color, marker=appearance.marker, linestyle=appearance.line)
        for line, *place in zip(lines, x, y, strict=True) if number == 0 else ():
            axis.annotate(f"{line['concurrency']}", place, textcoords="offset points", xytext=(-3, -7), fontsize=5)
    axis.set_xlim(0)
    axis.set_ylim(0)
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.set_xlabel("Tokens a second of one user")
    axis.set_ylabel("Tokens a second a device")


def _between_tokens(axis, shown: dict[Case, list[dict[str, Any]]]) -> None:
    """The 99th percentile with markers, the median dotted."""
    for case, lines in shown.items():
        appearance, at = look(*case), [line["concurrency"] for line in lines]
        axis.plot(at, [line["itl_median_ms"] for line in lines], color=appearance.color, linewidth=0.8, linestyle=":")
        axis.plot(
            at,
            [line["itl_p99_ms"] for line in lines],
            color=appearance.color,
            marker=appearance.marker,
            linestyle=appearance.line,
        )
    drawn = [line for lines in shown.values() for line in lines]
    axis.set_xscale("log")
    axis.set_xticks(measured := sorted({line["concurrency"] for line in drawn}), measured)
    axis.minorticks_off()
    wide_axis(axis.yaxis, [line[f"itl_{name}_ms"] for line in drawn for name in ("median", "p99")])
    axis.set_xlabel("Requests at once")
    axis.set_ylabel("Time between tokens (ms)")


_CURVES = {
    "pareto": (
        _pareto,
        {},
        "A marker is a number of requests that are always under way, written beside the first curve; the next begins as one "
        "ends. A device's tokens are input and output; one user's a second are the inverse of the median time per output token.",
    ),
    "between_tokens": (
        _between_tokens,
        {"99th percentile": {"marker": "o"}, "median": {"linewidth": 0.8, "linestyle": ":"}},
        "So many requests are always under way, and the next begins as one ends: those who decode wait for the steps that "
        "compute its prompt. Over all tokens of all requests but each one's first.",
    ),
}

KIND = serving_kind("figure", make, own={"curve": Literal["pareto", "between_tokens"]}, exactly={"models": 1})
