"""Figures of serving: throughput by input length, latency by request rate, and forward passes by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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
from pipeline.artifacts.frame import BASELINE, Row, frame, measured, published
from pipeline.artifacts.labels import heading, label
from pipeline.artifacts.metrics import METRICS, MISSING, OOM, length_label, show
from pipeline.artifacts.records import Record, checked_records, provenance

Entry = Mapping[str, Any]
Files = Mapping[str, Sequence[Path]]
_BLACK = {"color": "black", "linewidth": 1.3}


class Served:
    """The rows of a serving figure, and the notes below it."""

    def __init__(self, entry: Entry, files: Files) -> None:
        self.entry = entry
        self.records = checked_records(entry, files)
        self.rows = measured(self.records)
        self.published = published(entry, files.get("published", ()), self.records)
        self.cases = [tuple(case) for case in entry["cases"]]

    @property
    def data(self) -> pd.DataFrame:
        """All rows, those of cases without a record too."""
        return pd.concat([self.rows, self.published, frame(self._missing())], ignore_index=True)

    def _missing(self) -> Iterable[Row]:
        known = {(record.model["name"], *record.case, record.what) for record in self.records}
        for model in self.entry["models"]:
            for point in self.entry["points"]:
                for case in self.cases:
                    if (model["name"], *case, point) not in known:
                        why = self.entry["unmeasured"].get(model["name"], {}).get(case[0], "not measured")
                        place = {"model": model["name"], "variant": case[0], "kv_cache": case[1], "point": point}
                        yield place | {"source": "measured", "status": "missing", "reason": why}

    def of(self, metric: str, model: str, case: tuple[str, ...], point: str) -> pd.DataFrame:
        """The rows of a metric."""
        named = {"metric": metric, "model": model, "variant": case[0], "kv_cache": case[1], "point": point}
        return self.rows[(self.rows[list(named)] == list(named.values())).all(axis=1)]

    def one(self, metric: str, model: str, case: tuple[str, ...], point: str) -> Mapping[str, Any]:
        """The only row of a metric; one without a value where there is none."""
        rows = self.of(metric, model, case, point)
        row = rows.iloc[0].to_dict() if len(rows) else {}
        empty = {"value": None, "low": None, "high": None, "status": "missing"}
        return empty | {name: None if isinstance(cell, float) and pd.isna(cell) else cell for name, cell in row.items()}

    @property
    def notes(self) -> list[str]:
        """The entry's notes, what the sources state, the reasons of what is missing, and where the records are from."""
        stated = list(dict.fromkeys(self.published["text"]))
        data = self.data
        gaps: dict[str, dict[str, None]] = {}
        for row in data[(data["status"] != "ok") & (data["source"] == "measured")].to_dict("records"):
            gaps.setdefault(row["reason"], {})[
                f"{label(self.entry, row['variant'], row['kv_cache'])}: {_blank(row)}"
            ] = None
        return [
            *([f"published: {'; '.join(stated)}"] if stated else []),
            *self.entry.get("notes", []),
            *(f"{'; '.join(names)} ({why})" for why, names in gaps.items()),
            *provenance(self.records),
        ]


def _blank(row: Mapping[str, Any]) -> str:
    return OOM if row["status"] == "oom" else MISSING


def throughput(entry: Entry, files: Files) -> Drawing:
    """Bars of every model: tokens a second, and on GPUs normalized TFLOP/s a device.

    The latter are the tokens a second times twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With
    `node_gpus` the tokens a second are those of a node of so many GPUs, each group of them serving a replica.
    """
    served, node = Served(entry, files), entry.get("node_gpus")
    on_gpus = any(record.gpus for record in served.records)
    if node:
        served.rows = pd.concat([served.rows, frame(_of_node(served, node))], ignore_index=True)
    quantities = ["node_tokens_per_second" if node and on_gpus else "tokens_per_second"]
    quantities += ["normalized_tflops_per_gpu"] if on_gpus and not node else []
    models, notes = entry["models"], served.notes
    figure = new_figure(PAGE, 1.4 + 1.9 * len(quantities), notes)
    axes = figure.subplots(len(quantities), len(models), squeeze=False)
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    for number, quantity in enumerate(quantities):
        for column, model in enumerate(models):
            axis, bars = axes[number, column], []
            for case in served.cases:
                own = [_bar(served, quantity, model["name"], case, point) for point in entry["points"]]
                bars.append((look(*case), own))
            draw_bars(axis, groups, bars)
            axis.set_ylabel(METRICS[quantity].header if column == 0 else "")
            axis.set_xlabel("Input tokens" if number == len(quantities) - 1 else "")
            if len(models) > 1 and number == 0:
                axis.set_title(model["title"])
    headline(figure, heading(entry))
    handles = [handle(label(entry, *case), box=True, **look(*case).fill) for case in served.cases]
    legend(figure, [*handles, handle("limit by FLOPs", **_BLACK)], notes)
    return Drawing(figure, served.data)


def _bar(served: Served, quantity: str, model: str, case: tuple[str, ...], point: str) -> Bar:
    """A bar with its speed-up inside; its limit is the baseline's value times the speed-up that the FLOP count allows."""
    row, base = (served.one(quantity, model, which, point) for which in (case, BASELINE))
    if row["value"] is None:
        return Bar(None, note=_blank(row))
    gain, most = (served.one(name, model, case, point)["value"] for name in ("speedup", "speedup_limit"))
    bar = Bar(row["value"], row["low"], row["high"])
    if case == BASELINE or gain is None:
        return bar
    limit = base["value"] * most if most and base["value"] else None
    return bar._replace(text=show(gain, ".2f|×"), limit=limit, limit_text=show(most, ".2f|×") if most else "")


def _of_node(served: Served, node_gpus: int) -> Iterable[Row]:
    """The throughput of a node of replicas, and over that of the first model's baseline on the same kind of device."""
    records = {(record.model["name"], *record.case, record.what): record for record in served.records}
    first_model = served.entry["models"][0]["name"]
    for record in served.records:
        row = served.one("tokens_per_second", record.model["name"], record.case, record.what)
        if row["value"] is None:
            continue
        copies = _replicas(record, node_gpus)
        scaled = {end: row[end] and row[end] * copies for end in ("value", "low", "high")}
        whole = row | {"metric": "node_tokens_per_second"} | scaled
        yield whole
        first = records.get((first_model, *BASELINE, record.what))
        if first is not None and first.ok and _platform(first) == _platform(record):
            of_first = first.result["tokens_per_second"] * _replicas(first, node_gpus)
            gain = {"value": scaled["value"] / of_first, "low": None, "high": None, "unit": "×"}
            yield whole | {"metric": "speedup_over_first_model"} | gain


def _replicas(record: Record, node_gpus: int) -> float:
    return node_gpus / record.devices if record.gpus else 1.0


def _platform(record: Record) -> tuple[Any, ...]:
    return record.device, record.engine.get("vllm"), record.engine.get("compilation")


def latency(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one column a point, or one for all with `together`."""
    served, (model,) = Served(entry, files), entry["models"]
    together = entry.get("together", False)
    if together:
        served.rows = frame(_against_plain(served))
    curves = [(point, case) for point in entry["points"] for case in served.cases]
    columns = [curves] if together else [[one for one in curves if one[0] == point] for point in entry["points"]]
    bounded = served.rows[(served.rows["metric"] == "highest_sustained_rate") & served.rows["high"].notna()]
    panels = ["ttft_median_ms", "tpot_median_ms", *(["highest_sustained_rate"] if len(bounded) else [])]
    single, notes = len(columns) == 1, served.notes
    figure = new_figure(PAGE, 3.3 if single else 1.3 + 1.7 * len(panels), notes)
    shape = (1, len(panels)) if single else (len(panels), len(columns))
    axes = figure.subplots(*shape, squeeze=False)
    axes = axes.T if single else axes
    for number, column in enumerate(columns):
        for row, metric in enumerate(panels):
            axis = axes[row, number]
            if metric == "highest_sustained_rate":
                draw_bars(
                    axis, [""], [(_look(entry, *one), [_rate_bar(served, model["name"], *one)]) for one in column]
                )
            else:
                _draw_latencies(axis, served, model["name"], column, metric)
                axis.set_xlabel("Requests a second")
            axis.set_ylabel(METRICS[metric].header if single or number == 0 else "")
        if not single:
            axes[0, number].set_title(_input(entry, column[0][0]), pad=9)
    headline(figure, heading(entry), *(dict.fromkeys(_input(entry, point) for point, _ in curves) if single else ()))
    handles = {_name(entry, *one): handle(_name(entry, *one), **_look(entry, *one).line) for one in curves}
    legend(figure, [*handles.values(), *_signs(served, bounded)], notes)
    return Drawing(figure, served.data)


def _against_plain(served: Served) -> Iterable[Mapping[Any, Any]]:
    """The rows of a figure with speculation: reductions are against the baseline without it, gains in rates are left out."""
    rows = served.rows[
        ~served.rows["metric"].isin(["ttft_reduction_percent", "tpot_reduction_percent", "sustained_rate_limit"])
    ]
    plain = next(point for point in served.entry["points"] if not _speculative(served.entry, point))
    model = served.entry["models"][0]["name"]
    yield from rows.to_dict("records")
    for metric in ("ttft", "tpot"):
        base = served.of(f"{metric}_median_ms", model, BASELINE, plain).set_index("at")["value"]
        kept_up = served.of("sustained", model, BASELINE, plain).set_index("at")["value"]
        for row in rows[rows["metric"] == f"{metric}_median_ms"].to_dict("records"):
            is_base = (row["variant"], row["kv_cache"], row["point"]) == (*BASELINE, plain)
            if not is_base and kept_up.get(row["at"]) and pd.notna(row["value"]):
                value = 100 * (1 - row["value"] / base[row["at"]])
                yield row | {"metric": f"{metric}_reduction_percent", "value": value, "unit": "%"}


def _speculative(entry: Entry, point: str) -> bool:
    return bool(entry["points"][point].get("speculative"))


def _look(entry: Entry, point: str, case: tuple[str, ...]) -> Look:
    return look(*case, second=_speculative(entry, point))


def _name(entry: Entry, point: str, case: tuple[str, ...]) -> str:
    method = (entry["points"][point].get("speculative") or {}).get("method")
    return label(entry, *case) + (f", {'n-gram' if method == 'ngram' else method} speculation" if method else "")


def _input(entry: Entry, point: str) -> str:
    chats = "held-out chats, up to " if entry["points"][point].get("dataset") else ""
    return f"{chats}{entry['points'][point]['input_tokens']:,} input tokens"


def _draw_latencies(axis, served: Served, model: str, column: Sequence[tuple[str, Any]], metric: str) -> None:
    """Medians with markers, open where the rate was not sustained; 99th percentiles dotted, where requests are enough."""
    drawn = []
    for point, case in [*column[1:], column[0]]:  # the baseline last: where curves meet, it stays visible
        rows, appearance = (
            served.of(metric, model, case, point).dropna(subset=["at", "value"]),
            _look(served.entry, point, case),
        )
        kept_up = served.of("sustained", model, case, point).set_index("at")["value"]
        filled = [bool(kept_up.get(at, 1)) for at in rows.sort_values("at")["at"]]
        slowest = served.of(metric.replace("median", "p99"), model, case, point).dropna(subset=["at", "value"])
        axis.plot(slowest["at"], slowest["value"], color=appearance.color, linewidth=0.8, linestyle=":")
        draw_curve(axis, rows, appearance, filled)
        drawn += [rows, slowest]
        limit = served.one("sustained_rate_limit", model, case, point)["value"]
        if limit and metric.startswith("ttft"):
            axis.plot(limit, 1.03, marker="v", color=appearance.color, markerfacecolor="white", markersize=4,
                      transform=axis.get_xaxis_transform(), clip_on=False)  # fmt: skip
    every = pd.concat(drawn)
    wide_axis(axis.xaxis, every["at"])
    wide_axis(axis.yaxis, every["value"])


def _rate_bar(served: Served, model: str, point: str, case: tuple[str, ...]) -> Bar:
    """From the highest rate that was sustained to the lowest that was not, with the gain that both brackets allow."""
    row, gain = (served.one(name, model, case, point) for name in ("highest_sustained_rate", "sustained_rate_speedup"))
    limit = served.one("sustained_rate_limit", model, case, point)["value"]
    if row["value"] is None:
        return Bar(None, note="none" if row["status"] == "ok" else _blank(row))
    text = f"≥ {row['value']:.3g}" if row["high"] is None else f"{row['low']:.3g} to {row['high']:.3g}"
    if case != BASELINE and gain["low"] is not None:
        text += f"\n≥ {gain['low']:.2f}×" if gain["high"] is None else f"\n{gain['low']:.2f} to {gain['high']:.2f}×"
    return Bar(row["value"], row["low"], row["high"], text, limit, f"{limit:.3g}" if limit else "")


def _signs(served: Served, bounded: pd.DataFrame) -> list[Any]:
    """What the signs mean that curves share, of those that are drawn."""
    gray, rows = "0.4", served.rows
    signs = [handle("median", color=gray, marker="o")]
    if rows[rows["metric"] == "ttft_p99_ms"]["value"].notna().any():
        signs.append(handle("99th percentile", color=gray, linewidth=0.8, linestyle=":"))
    if (rows[rows["metric"] == "sustained"]["value"] == 0).any():
        signs.append(handle("rate not sustained", color=gray, marker="o", markerfacecolor="white"))
    if (rows["metric"] == "sustained_rate_limit").any():
        empty = {"color": gray, "marker": "v", "markerfacecolor": "white", "linestyle": ""}
        signs.append(handle("highest rate the FLOPs allow", **empty))
        signs += [handle("limit by FLOPs", **_BLACK)] if len(bounded) else []
    return signs


def forward(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch, both with their intervals.

    Dashed are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows, and that speed-up.
    Where variants took turns with the baseline, its times are those of all these turns.
    """
    served, (model,), (point,) = Served(entry, files), entry["models"], entry["points"]
    notes = served.notes
    figure = new_figure(PAGE, 2.9, notes)
    times, gains = figure.subplots(1, 2)
    gains.axhline(1, color="black", linewidth=0.8, zorder=0)
    base = served.of("forward_ms", model["name"], BASELINE, point).sort_values("at")
    for case in served.cases:
        appearance = look(*case)
        draw_curve(times, served.of("forward_ms", model["name"], case, point), appearance)
        if case == BASELINE:
            continue
        draw_curve(gains, served.of("forward_speedup", model["name"], case, point), appearance)
        if limit := served.one("forward_speedup_limit", model["name"], case, point)["value"]:
            thin = {"color": appearance.color, "linewidth": 0.8, "linestyle": LIMIT_CURVE}
            times.plot(base["at"], base["value"] / limit, **thin)
            gains.axhline(limit, **thin)
    sizes = sorted(base["at"].dropna().unique())
    for axis in (times, gains):
        wide_axis(axis.xaxis, sizes)
        axis.set_xticks(sizes, [length_label(tokens) for tokens in sizes], rotation=45)
        axis.set_xlabel("Tokens in the batch")
    wide_axis(times.yaxis, served.rows[served.rows["metric"] == "forward_ms"]["value"])
    times.set_ylabel(METRICS["forward_ms"].header)
    gains.set_ylabel("Speed-up over the baseline\n(below 1: slower)")
    gains.set_ylim(max(0.0, gains.get_ylim()[0]))
    gains.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    headline(figure, heading(entry))
    handles = [handle(label(entry, *case), **look(*case).line) for case in served.cases]
    legend(figure, [*handles, handle("limit by FLOPs", color="black", linewidth=0.8, linestyle=LIMIT_CURVE)], notes)
    return Drawing(figure, served.data)
