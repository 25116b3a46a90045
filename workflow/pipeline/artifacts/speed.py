"""Figures of serving: throughput by input length, latency by request rate, and forward passes by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    PAGE,
    Bar,
    Drawing,
    Look,
    draw_bars,
    draw_curve,
    handle,
    look,
    new_figure,
    wide_axis,
)
from pipeline.artifacts.frame import BASELINE, Row
from pipeline.artifacts.labels import heading, label
from pipeline.artifacts.metrics import METRICS, MISSING, OOM, length_label, show
from pipeline.artifacts.published import Case, Entry, Files, Numbers
from pipeline.artifacts.records import provenance

_LIMIT = {"label": "limit by FLOPs", "color": "black"}
_DASHED = {"linewidth": 0.8, "linestyle": (0, (6, 2))}  # the limit of a curve; over a bar it is a dash


class Served(Numbers):
    """The numbers of a serving figure; a case without a record at a point is there with the reason."""

    def __init__(self, entry: Entry, files: Files) -> None:
        super().__init__(entry, files)
        self.cases = {
            model["name"]: [Case(model["name"], *case) for case in entry["cases"]] for model in entry["models"]
        }
        known = {(record.model["name"], *record.case, record.what) for record in self.records}
        self.add(
            {"source": "measured", **case._asdict(), "point": point, "status": "missing", "reason": why}
            for cases in self.cases.values()
            for point in entry["points"]
            for case in cases
            if (*case, point) not in known
            for why in [entry["unmeasured"].get(case.model, {}).get(case.variant, "not measured")]
        )

    def bar(self, case: Case, metric: str, point: str) -> Bar:
        """A bar with its interval; OOM, none or n/a in place of a missing number."""
        row = self.find(case, metric, point)
        if row and row["value"] is not None:
            return Bar(row["value"], row["low"], row["high"])
        return Bar(None, text={"oom": OOM, "ok": "none"}.get(row["status"] if row else "", MISSING))

    @property
    def notes(self) -> list[str]:
        """Statements of the sources, the entry's notes, reasons of gaps, and the origin of the records."""
        stated = "; ".join(dict.fromkeys(self.published["text"]))
        gaps = dict.fromkeys(
            f"{label(self.entry, row['variant'], row['kv_cache'])}: {OOM if row['status'] == 'oom' else MISSING} ({row['reason']})"
            for row in self.rows[self.rows["status"] != "ok"].to_dict("records")
        )
        published = [f"published: {stated}"] if stated else []
        return [*published, *self.entry.get("notes", []), *gaps, *provenance(self.records)]


def throughput(entry: Entry, files: Files) -> Drawing:
    """Bars of every model: tokens a second, and on GPUs normalized TFLOP/s a device.

    The latter are the tokens a second times twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With
    `node_gpus` the tokens a second are those of a node of so many GPUs, each group of them serving a replica.
    """
    served, node = Served(entry, files), entry.get("node_gpus")
    on_gpus = any(record.gpus for record in served.records)
    if node:
        served.add(list(_of_node(served, node)))
    metrics = ["tokens_per_second", "normalized_tflops_per_gpu"] if on_gpus else ["tokens_per_second"]
    metrics = ["node_tokens_per_second"] if on_gpus and node else metrics
    handles = [handle(label(entry, *case), box=True, **look(*case).fill) for case in entry["cases"]]
    handles.append(handle(**_LIMIT))
    figure = new_figure(PAGE, 1.4 + 1.9 * len(metrics), heading(entry), handles, served.notes)
    axes = figure.subplots(len(metrics), len(served.cases), squeeze=False)
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    for metric, row in zip(metrics, axes, strict=True):
        for model, axis in zip(entry["models"], row, strict=True):
            cases = served.cases[model["name"]]
            draw_bars(
                axis,
                groups,
                [
                    (look(*case[1:]), [_with_gain(served, metric, case, point) for point in entry["points"]])
                    for case in cases
                ],
            )
            if len(row) > 1 and metric == metrics[0]:
                axis.set_title(model["title"])
        row[0].set_ylabel(METRICS[metric].header)
    for axis in axes[-1]:
        axis.set_xlabel("Input tokens")
    return Drawing(figure, served.data)


def _with_gain(served: Served, metric: str, case: Case, point: str) -> Bar:
    """A bar with its speed-up inside; its limit is the baseline's value times the speed-up that the FLOP count allows."""
    bar, gain = served.bar(case, metric, point), served.value(case, "speedup", point)
    if bar.value is None or case[1:] == BASELINE or gain is None:
        return bar
    base, most = served.value(Case(case.model, *BASELINE), metric, point), served.value(case, "speedup_limit", point)
    limited = {"limit": base * most, "limit_text": show(most, ".2f|×")} if base and most else {}
    return bar._replace(text=show(gain, ".2f|×"), **limited)


def _of_node(served: Served, node_gpus: int) -> Iterator[Row]:
    """The throughput of a node of replicas, and over that of the first model's baseline on the same kind of device."""
    firsts: dict[str, tuple[str, float]] = {}
    for record in served.records:
        row = served.find(Case(record.model["name"], *record.case), "tokens_per_second", record.what)
        if row is None or row["value"] is None:
            continue
        replicas = node_gpus / record.devices if record.gpus else 1.0
        scaled = {end: row[end] and row[end] * replicas for end in ("value", "low", "high")}
        yield row | {"metric": "node_tokens_per_second"} | scaled
        if record.model["name"] == served.entry["models"][0]["name"] and record.case == BASELINE:
            firsts[record.what] = record.device, scaled["value"]
        device, first = firsts.get(record.what, ("", 1.0))
        if device == record.device:
            gain = {"value": scaled["value"] / first, "low": None, "high": None, "unit": "×"}
            yield row | {"metric": "speedup_over_first_model"} | gain


def latency(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one row a point, or one for all with `together`."""
    served = Served(entry, files)
    (cases,) = served.cases.values()
    points = [list(entry["points"])] if entry.get("together") else [[point] for point in entry["points"]]
    bounded = served.rows[(served.rows["metric"] == "highest_sustained_rate") & served.rows["high"].notna()]
    panels = ["ttft_median_ms", "tpot_median_ms", *(["highest_sustained_rate"] if len(bounded) else [])]
    handles: dict[str, Any] = {}
    for point in entry["points"]:
        for case in cases:
            method = _speculation(entry, point)
            name = label(entry, *case[1:]) + (f", {method.replace('ngram', 'n-gram')} speculation" if method else "")
            handles[name] = handle(name, **_look(entry, case, point).line)
    values = served.rows.groupby("metric")["value"]
    if values.count().get("ttft_p99_ms"):
        handles["p99"] = handle("99th percentile", color="0.4", linewidth=0.8, linestyle=":")
    if values.min().get("sustained") == 0:
        handles["open"] = handle("rate not sustained", color="0.4", marker="o", markerfacecolor="white")
    if len(bounded):
        handles["limit"] = handle(**_LIMIT)
    figure = new_figure(PAGE, 1.2 + 1.9 * len(points), heading(entry), [*handles.values()], served.notes)
    axes = figure.subplots(len(points), len(panels), squeeze=False)
    for row, together in zip(axes, points, strict=True):
        curves = [(case, point) for point in together for case in cases]
        settings = entry["points"][together[0]]
        chats = "held-out chats, up to " if settings.get("dataset") else ""
        row[0].set_title(f"{chats}{settings['input_tokens']:,} input tokens", loc="left")
        for axis, metric in zip(row, panels, strict=True):
            axis.set_ylabel(METRICS[metric].header)
            if metric == "highest_sustained_rate":
                draw_bars(axis, [""], [(_look(entry, *one), [_rate_bar(served, *one)]) for one in curves])
            else:
                _draw_latencies(axis, served, curves, metric)
    return Drawing(figure, served.data)


def _speculation(entry: Entry, point: str) -> str | None:
    return (entry["points"][point].get("speculative") or {}).get("method")


def _look(entry: Entry, case: Case, point: str) -> Look:
    return look(*case[1:], second=_speculation(entry, point) is not None)


def _draw_latencies(axis, served: Served, curves: Sequence[tuple[Case, str]], metric: str) -> None:
    """Medians with markers, open where the rate was not sustained; 99th percentiles dotted, where requests are enough."""
    drawn = []
    for case, point in [*curves[1:], curves[0]]:  # the baseline last: where curves meet, it stays visible
        rows, appearance = served.along(case, metric, point), _look(served.entry, case, point)
        slowest = served.along(case, metric.replace("median", "p99"), point)
        kept_up = served.along(case, "sustained", point).set_index("at")["value"]
        axis.plot(slowest["at"], slowest["value"], color=appearance.color, linewidth=0.8, linestyle=":")
        draw_curve(axis, rows, appearance, [bool(kept_up.get(at, 1)) for at in rows["at"]])
        drawn += [rows, slowest]
    every = pd.concat(drawn)
    wide_axis(axis.xaxis, every["at"])
    wide_axis(axis.yaxis, every["value"])
    axis.set_xlabel("Requests a second")


def _rate_bar(served: Served, case: Case, point: str) -> Bar:
    """From the highest rate that was sustained to the lowest that was not, with the gain that both brackets allow."""
    bar, gain = served.bar(case, "highest_sustained_rate", point), served.find(case, "sustained_rate_speedup", point)
    if bar.value is None:
        return bar
    text = _range(bar.low, bar.high, ".3g")
    if case[1:] != BASELINE and gain and gain["low"] is not None:
        text += f"\n{_range(gain['low'], gain['high'], '.2f')}×"
    limit = served.value(case, "sustained_rate_limit", point)
    return bar._replace(text=text, limit=limit, limit_text=f"{limit:.3g}" if limit else "")


def _range(low: float | None, high: float | None, form: str) -> str:
    return f"≥ {low:{form}}" if high is None else f"{low:{form}} to {high:{form}}"


def forward(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch, both with their intervals.

    Dashed are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows, and that speed-up.
    """
    served, (point,) = Served(entry, files), entry["points"]
    (cases,) = served.cases.values()
    handles = [handle(label(entry, *case), **look(*case).line) for case in entry["cases"]]
    handles.append(handle(**_LIMIT, **_DASHED))
    figure = new_figure(PAGE, 2.9, heading(entry), handles, served.notes)
    times, gains = figure.subplots(1, 2)
    gains.axhline(1, color="black", linewidth=0.8, zorder=0)
    base = served.along(cases[0]._replace(variant=BASELINE[0], kv_cache=BASELINE[1]), "forward_ms", point)
    for case in cases:
        appearance = look(*case[1:])
        draw_curve(times, served.along(case, "forward_ms", point), appearance)
        if case[1:] == BASELINE:
            continue
        draw_curve(gains, served.along(case, "forward_speedup", point), appearance)
        if limit := served.value(case, "forward_speedup_limit", point):
            times.plot(base["at"], base["value"] / limit, color=appearance.color, **_DASHED)
            gains.axhline(limit, color=appearance.color, **_DASHED)
    for axis in (times, gains):
        wide_axis(axis.xaxis, base["at"])
        axis.set_xticks(base["at"], [length_label(tokens) for tokens in base["at"]], rotation=45)
        axis.set_xlabel("Tokens in the batch")
    wide_axis(times.yaxis, served.rows[served.rows["metric"] == "forward_ms"]["value"])
    times.set_ylabel(METRICS["forward_ms"].header)
    gains.set_ylabel("Speed-up over the baseline\n(below 1: slower)")
    gains.set_ylim(max(0.0, gains.get_ylim()[0]))
    gains.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    return Drawing(figure, served.data)
