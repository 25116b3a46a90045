"""Figures of serving: throughput by input length, latency by request rate, and forward passes by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.artifacts.drawing import (
    LIMIT_CURVE,
    PAGE,
    Bar,
    Drawing,
    Look,
    draw_bars,
    draw_curve,
    handle,
    headline,
    legend,
    look,
    new_figure,
    wide_axis,
)
from pipeline.artifacts.frame import BASELINE, Row
from pipeline.artifacts.labels import heading, label
from pipeline.artifacts.metrics import METRICS, MISSING, OOM, length_label, show
from pipeline.artifacts.published import Case, Entry, Files, Numbers
from pipeline.artifacts.records import Record, provenance

_LIMIT = {"label": "limit by FLOPs", "color": "black"}


class Served(Numbers):
    """The numbers of a serving figure; a case without a record at a point is there with the reason."""

    def __init__(self, entry: Entry, files: Files) -> None:
        super().__init__(entry, files)
        self.variants = [tuple(case) for case in entry["cases"]]
        known = {(record.model["name"], *record.case, record.what) for record in self.records}
        self.add(
            {"source": "measured", **case._asdict(), "point": point, "status": "missing", "reason": why}
            for model in entry["models"]
            for point in entry["points"]
            for case in self.cases(model)
            if (*case, point) not in known
            for why in [entry["unmeasured"].get(case.model, {}).get(case.variant, "not measured")]
        )

    def cases(self, model: Mapping[str, Any]) -> list[Case]:
        """The variants of a model, in the order of the entry."""
        return [Case(model["name"], *variant) for variant in self.variants]

    def blank(self, case: Case, metric: str, point: str) -> str:
        """Text in place of a missing number."""
        row = self.find(case, metric, point)
        return OOM if row and row["status"] == "oom" else "none" if row and row["status"] == "ok" else MISSING

    @property
    def notes(self) -> list[str]:
        """Statements of the sources, the entry's notes, reasons of gaps, and the origin of the records."""
        stated = "; ".join(dict.fromkeys(self.published["text"]))
        gaps: dict[str, dict[str, None]] = {}
        for row in self.rows[self.rows["status"] != "ok"].to_dict("records"):
            blank = OOM if row["status"] == "oom" else MISSING
            gaps.setdefault(row["reason"], {})[f"{label(self.entry, row['variant'], row['kv_cache'])}: {blank}"] = None
        reasons = [f"{'; '.join(names)} ({why})" for why, names in gaps.items()]
        published = [f"published: {stated}"] if stated else []
        return [*published, *self.entry.get("notes", []), *reasons, *provenance(self.records)]


def throughput(entry: Entry, files: Files) -> Drawing:
    """Bars of every model: tokens a second, and on GPUs normalized TFLOP/s a device.

    The latter are the tokens a second times twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With
    `node_gpus` the tokens a second are those of a node of so many GPUs, each group of them serving a replica.
    """
    served, node = Served(entry, files), entry.get("node_gpus")
    on_gpus = any(record.gpus for record in served.records)
    if node:
        served.add(list(_of_node(served, node)))
    quantities = ["node_tokens_per_second" if node and on_gpus else "tokens_per_second"]
    quantities += ["normalized_tflops_per_gpu"] if on_gpus and not node else []
    models, notes = entry["models"], served.notes
    figure = new_figure(PAGE, 1.4 + 1.9 * len(quantities), notes)
    axes = figure.subplots(len(quantities), len(models), squeeze=False)
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    steep = len(models) * len(groups) * len(served.variants) > 8
    for number, quantity in enumerate(quantities):
        for column, model in enumerate(models):
            axis = axes[number, column]
            bars = [
                (look(*case[1:]), [_bar(served, quantity, case, point) for point in entry["points"]])
                for case in served.cases(model)
            ]
            draw_bars(axis, groups, bars, steep=steep)
            axis.set_ylabel(METRICS[quantity].header if column == 0 else "")
            axis.set_xlabel("Input tokens" if number == len(quantities) - 1 else "")
            axis.set_title(model["title"] if len(models) > 1 and number == 0 else "")
    headline(figure, heading(entry))
    handles = [handle(label(entry, *variant), box=True, **look(*variant).fill) for variant in served.variants]
    legend(figure, [*handles, handle(**_LIMIT, linewidth=1.3)], notes)
    return Drawing(figure, served.data)


def _bar(served: Served, quantity: str, case: Case, point: str) -> Bar:
    """A bar with its speed-up inside; its limit is the baseline's value times the speed-up that the FLOP count allows."""
    row = served.find(case, quantity, point)
    if row is None or row["value"] is None:
        return Bar(None, note=served.blank(case, quantity, point))
    bar, gain = Bar(row["value"], row["low"], row["high"]), served.value(case, "speedup", point)
    if case[1:] == BASELINE or gain is None:
        return bar
    base, most = served.value(Case(case.model, *BASELINE), quantity, point), served.value(case, "speedup_limit", point)
    limited = {"limit": base * most, "limit_text": show(most, ".2f|×")} if base and most else {}
    return bar._replace(text=show(gain, ".2f|×"), **limited)


def _of_node(served: Served, node_gpus: int) -> Iterator[Row]:
    """The throughput of a node of replicas, and over that of the first model's baseline on the same kind of device."""
    first_model = served.entry["models"][0]["name"]
    firsts = {
        record.what: record
        for record in served.records
        if (record.model["name"], *record.case) == (first_model, *BASELINE)
    }
    for record in served.records:
        row = served.find(Case(record.model["name"], *record.case), "tokens_per_second", record.what)
        if row is None or row["value"] is None:
            continue
        scaled = {end: row[end] and row[end] * _replicas(record, node_gpus) for end in ("value", "low", "high")}
        yield row | {"metric": "node_tokens_per_second"} | scaled
        first = firsts.get(record.what)
        if first is not None and first.ok and _platform(first) == _platform(record):
            of_first = first.result["tokens_per_second"] * _replicas(first, node_gpus)
            gain = {"value": scaled["value"] / of_first, "low": None, "high": None, "unit": "×"}
            yield row | {"metric": "speedup_over_first_model"} | gain


def _replicas(record: Record, node_gpus: int) -> float:
    return node_gpus / record.devices if record.gpus else 1.0


def _platform(record: Record) -> tuple[Any, ...]:
    return record.device, record.engine.get("vllm"), record.engine.get("compilation")


def latency(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one column a point, or one for all with `together`."""
    served, (model,) = Served(entry, files), entry["models"]
    curves = [(case, point) for point in entry["points"] for case in served.cases(model)]
    columns = (
        [curves] if entry.get("together") else [[one for one in curves if one[1] == point] for point in entry["points"]]
    )
    bounded = served.rows[(served.rows["metric"] == "highest_sustained_rate") & served.rows["high"].notna()]
    panels = ["ttft_median_ms", "tpot_median_ms", *(["highest_sustained_rate"] if len(bounded) else [])]
    single, notes = len(columns) == 1, served.notes
    figure = new_figure(PAGE, 3.3 if single else 1.3 + 1.7 * len(panels), notes)
    axes = figure.subplots(*((1, len(panels)) if single else (len(panels), len(columns))), squeeze=False)
    axes = axes.T if single else axes
    for number, column in enumerate(columns):
        for row, metric in enumerate(panels):
            axis = axes[row, number]
            if metric == "highest_sustained_rate":
                bars = [(_look(entry, *one), [_rate_bar(served, *one)]) for one in column]
                draw_bars(axis, [""], bars, steep=not single)
            else:
                _draw_latencies(axis, served, column, metric)
                axis.set_xlabel("Requests a second")
            axis.set_ylabel(METRICS[metric].header if single or number == 0 else "")
        axes[0, number].set_title("" if single else _input(entry, column[0][1]), pad=9)
    headline(figure, heading(entry), *(dict.fromkeys(_input(entry, point) for _, point in curves) if single else ()))
    handles = {_name(entry, *one): handle(_name(entry, *one), **_look(entry, *one).line) for one in curves}
    legend(figure, [*handles.values(), *_signs(served, bounded)], notes)
    return Drawing(figure, served.data)


def _method(entry: Entry, point: str) -> str | None:
    return (entry["points"][point].get("speculative") or {}).get("method")


def _look(entry: Entry, case: Case, point: str) -> Look:
    return look(*case[1:], second=_method(entry, point) is not None)


def _name(entry: Entry, case: Case, point: str) -> str:
    method = _method(entry, point)
    speculation = f", {'n-gram' if method == 'ngram' else method} speculation" if method else ""
    return label(entry, *case[1:]) + speculation


def _input(entry: Entry, point: str) -> str:
    chats = "held-out chats, up to " if entry["points"][point].get("dataset") else ""
    return f"{chats}{entry['points'][point]['input_tokens']:,} input tokens"


def _draw_latencies(axis, served: Served, column: Sequence[tuple[Case, str]], metric: str) -> None:
    """Medians with markers, open where the rate was not sustained; 99th percentiles dotted, where requests are enough."""
    drawn = []
    for case, point in [*column[1:], column[0]]:  # the baseline last: where curves meet, it stays visible
        rows, appearance = served.along(case, metric, point), _look(served.entry, case, point)
        slowest = served.along(case, metric.replace("median", "p99"), point)
        kept_up = served.along(case, "sustained", point).set_index("at")["value"]
        axis.plot(slowest["at"], slowest["value"], color=appearance.color, linewidth=0.8, linestyle=":")
        draw_curve(axis, rows, appearance, [bool(kept_up.get(at, 1)) for at in rows["at"]])
        drawn += [rows, slowest]
        limit = served.value(case, "sustained_rate_limit", point)
        if limit and metric.startswith("ttft"):
            axis.plot(limit, 1.03, marker="v", color=appearance.color, markerfacecolor="white", markersize=4,
                      transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip
    every = pd.concat(drawn)
    wide_axis(axis.xaxis, every["at"])
    wide_axis(axis.yaxis, every["value"])


def _rate_bar(served: Served, case: Case, point: str) -> Bar:
    """From the highest rate that was sustained to the lowest that was not, with the gain that both brackets allow."""
    row, gain = (served.find(case, name, point) for name in ("highest_sustained_rate", "sustained_rate_speedup"))
    if row is None or row["value"] is None:
        return Bar(None, note=served.blank(case, "highest_sustained_rate", point))
    text = f"≥ {row['value']:.3g}" if row["high"] is None else f"{row['low']:.3g} to {row['high']:.3g}"
    if case[1:] != BASELINE and gain and gain["low"] is not None:
        text += f"\n≥ {gain['low']:.2f}×" if gain["high"] is None else f"\n{gain['low']:.2f} to {gain['high']:.2f}×"
    limit = served.value(case, "sustained_rate_limit", point)
    return Bar(row["value"], row["low"], row["high"], text, limit, f"{limit:.3g}" if limit else "")


def _signs(served: Served, bounded: pd.DataFrame) -> list[Any]:
    """Legend entries of the signs that curves share, of those that are drawn."""
    gray, values = "0.4", served.rows.groupby("metric")["value"]
    signs = [handle("median", color=gray, marker="o")]
    if values.count().get("ttft_p99_ms", 0):
        signs.append(handle("99th percentile", color=gray, linewidth=0.8, linestyle=":"))
    if values.min().get("sustained", 1) == 0:
        signs.append(handle("rate not sustained", color=gray, marker="o", markerfacecolor="white"))
    if values.count().get("sustained_rate_limit", 0):
        empty = {"color": gray, "marker": "v", "markerfacecolor": "white", "linestyle": ""}
        signs.append(handle("highest rate the FLOPs allow", **empty))
        signs += [handle(**_LIMIT, linewidth=1.3)] if len(bounded) else []
    return signs


def forward(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch, both with their intervals.

    Dashed are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows, and that speed-up.
    """
    served, (model,), (point,) = Served(entry, files), entry["models"], entry["points"]
    notes = served.notes
    figure = new_figure(PAGE, 2.9, notes)
    times, gains = figure.subplots(1, 2)
    gains.axhline(1, color="black", linewidth=0.8, zorder=0)
    base = served.along(Case(model["name"], *BASELINE), "forward_ms", point)
    for case in served.cases(model):
        appearance = look(*case[1:])
        draw_curve(times, served.along(case, "forward_ms", point), appearance)
        if case[1:] == BASELINE:
            continue
        draw_curve(gains, served.along(case, "forward_speedup", point), appearance)
        if limit := served.value(case, "forward_speedup_limit", point):
            thin = {"color": appearance.color, "linewidth": 0.8, "linestyle": LIMIT_CURVE}
            times.plot(base["at"], base["value"] / limit, **thin)
            gains.axhline(limit, **thin)
    for axis in (times, gains):
        wide_axis(axis.xaxis, base["at"])
        axis.set_xticks(base["at"], [length_label(tokens) for tokens in base["at"]], rotation=45)
        axis.set_xlabel("Tokens in the batch")
    wide_axis(times.yaxis, served.rows[served.rows["metric"] == "forward_ms"]["value"])
    times.set_ylabel(METRICS["forward_ms"].header)
    gains.set_ylabel("Speed-up over the baseline\n(below 1: slower)")
    gains.set_ylim(max(0.0, gains.get_ylim()[0]))
    gains.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    headline(figure, heading(entry))
    handles = [handle(label(entry, *variant), **look(*variant).line) for variant in served.variants]
    legend(figure, [*handles, handle(**_LIMIT, linewidth=0.8, linestyle=LIMIT_CURVE)], notes)
    return Drawing(figure, served.data)
