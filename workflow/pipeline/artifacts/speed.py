"""Figures of serving: throughput by input length, latency by request rate, and forward passes by batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from pipeline.artifacts import Entry, Files, Row, inputs
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
from pipeline.artifacts.frame import interval
from pipeline.artifacts.labels import heading, label
from pipeline.artifacts.metrics import METRICS, MISSING, OOM, length_label, show, span
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.rates import P99_REQUESTS
from pipeline.artifacts.records import Case
from pipeline.statistics import exact, independent_ratio

_LIMIT = {"label": "limit by FLOPs", "color": "black"}
_BLANK = {"oom": OOM, "ok": "none"}  # in place of a number, by status
_DASHED = {"linewidth": 0.8, "linestyle": (0, (6, 2))}  # the limit of a curve; over a bar it is a dash


class Served(Numbers):
    """The numbers of a serving figure; a case that cannot be measured is there with the reason."""

    def __init__(self, entry: Entry, files: Files) -> None:
        super().__init__(entry, files)
        self.cases = [Case(*row) for row in inputs.rows(entry)]
        self.add(
            {"source": "measured", **case._asdict(), "point": point, "status": "missing", "reason": reason}
            for case in self.cases
            if (reason := entry["unmeasured"].get(case.model, {}).get(case.variant))
            for point in entry["points"]
        )
        stated = "; ".join(dict.fromkeys(self.published["text"]))
        gaps = dict.fromkeys(
            f"{label(entry, row.variant, row.kv_cache)}: {_BLANK.get(row.status, MISSING)} ({row.reason})"
            for row in self.rows[self.rows["status"] != "ok"].itertuples()
        )
        published = [f"published: {stated}"] if stated else []
        self.notes = [*published, *gaps, *self.notes]

    def bar(self, case: Case, metric: str, point: str) -> Bar:
        """A bar with its interval; OOM, none or n/a in place of a missing number."""
        row = self.find(case, metric, point)
        if row and row["value"] is not None:
            return Bar(row["value"], row["low"], row["high"])
        return Bar(None, text=_BLANK.get(row["status"], MISSING) if row else MISSING)


def throughput(entry: Entry, files: Files) -> Drawing:
    """Bars of every model: tokens a second, and on GPUs normalized TFLOP/s a device.

    The latter are the tokens a second times twice the model's parameters, as the paper counts (Sec. 4.3, footnote 2). With
    `node_gpus` the tokens a second are those of a node of so many GPUs, each group of them serving a replica.
    """
    served, node = Served(entry, files), entry.get("node_gpus")
    on_gpus = any(record.gpus for record in served.records)
    if node:
        served.add(_of_node(served, node))
    metrics = ["tokens_per_second", "normalized_tflops_per_gpu"] if on_gpus else ["tokens_per_second"]
    metrics = ["node_tokens_per_second"] if on_gpus and node else metrics
    handles = [handle(label(entry, *case), box=True, **look(*case).fill) for case in entry["cases"]]
    handles.append(handle(**_LIMIT))
    figure = new_figure(PAGE, 1.4 + 1.9 * len(metrics), heading(entry), handles, [*_decoding(served), *served.notes])
    axes = figure.subplots(len(metrics), len(entry["models"]), squeeze=False)
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    for metric, row in zip(metrics, axes, strict=True):
        for model, axis in zip(entry["models"], row, strict=True):
            bars = [
                (look(*case[1:]), [_with_gain(served, metric, case, point) for point in entry["points"]])
                for case in served.cases
                if case.model == model["name"]
            ]
            draw_bars(axis, groups, bars)
            if len(row) > 1 and metric == metrics[0]:
                axis.set_title(model["title"])
        row[0].set_ylabel(METRICS[metric].header)
    for axis in axes[-1]:
        axis.set_xlabel("Input tokens")
    return Drawing(figure, served.data)


def _decoding(served: Served) -> Iterator[str]:
    """How much of the baseline's time steps take in which no prompt is left; SwiftKV cannot shorten them."""
    rows = served.of("decode_only_percent")
    shares = rows[rows["variant"] == "baseline"]["value"].dropna()
    if len(shares):
        yield f"Steps that only decode take {span(shares, '.0f')}% of the baseline's time."


def _with_gain(served: Served, metric: str, case: Case, point: str) -> Bar:
    """A bar with its speed-up and the one that the FLOP count allows; its limit is as far above it as that above the first."""
    bar, gain = served.bar(case, metric, point), served.value(case, "speedup", point)
    if bar.value is None or case.unchanged or gain is None:
        return bar
    words, most = show(gain, ".2f|×"), served.value(case, "speedup_limit", point)
    if not most:
        return bar._replace(text=words)
    return bar._replace(text=f"{words}\nof {show(most, '.2f|×')}", limit=bar.value * most / gain)


def _of_node(served: Served, node_gpus: int) -> Iterator[Row]:
    """The throughput of a node of replicas, and over that of the first model's baseline on the same kind of device."""
    first, nodes, bases = Case(served.entry["models"][0]["name"], "baseline"), [], {}
    for record in served.records:
        case = record.case
        row = served.find(case, "tokens_per_second", record.what)
        if row and row["value"]:
            speed = interval(row).scaled(node_gpus / record.devices if record.gpus else 1)
            alike = record.what, record.device, record.engine.get("vllm"), record.engine.get("compilation")
            nodes.append((case, row, speed, alike))
            if case == first:
                bases[alike] = speed
    for case, row, speed, alike in nodes:
        yield row | speed._asdict() | {"metric": "node_tokens_per_second"}
        if alike in bases:
            gain = exact(1.0) if case == first else independent_ratio(speed, bases[alike])
            yield row | gain._asdict() | {"metric": "speedup_over_first_model", "unit": "×"}


def latency(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one row a point, or one for all with `together`."""
    served, looks, handles = Served(entry, files), {}, {}
    for point, settings in entry["points"].items():
        method = (settings.get("speculative") or {}).get("method", "")
        for case in served.cases:
            looks[case, point] = look(*case[1:], second=bool(method))
            name = label(entry, *case[1:]) + (f", {method.replace('ngram', 'n-gram')} speculation" if method else "")
            handles[name] = handle(name, **looks[case, point].line)
    rows = [looks]
    if not entry.get("together"):
        rows = [{one: looks[one] for one in looks if one[1] == point} for point in entry["points"]]
    panels = ["ttft_median_ms", "tpot_median_ms"]
    if served.of("highest_sustained_rate")["high"].notna().any():
        panels.append("highest_sustained_rate")
        handles["limit"] = handle(**_LIMIT)
    dotted = served.rows["metric"].str.endswith("_p99_ms") & served.rows["value"].notna()
    opened = (served.of("sustained")["value"] == 0).any()
    notes = ["Open markers: the rate was not sustained."] if opened else []
    notes += [f"Dotted: 99th percentile, of {P99_REQUESTS} requests a run or more."] if dotted.any() else []
    if len(sizes := served.of(panels[0])["n"].dropna()):
        runs = max(len(rate["runs"]) for record in served.records if record.ok for rate in record.result["rates"])
        notes.append(f"Each point is of {span(sizes, ',.0f')} requests, in {runs} run{'s' * (runs > 1)}.")
    figure = new_figure(PAGE, 1.2 + 1.9 * len(rows), heading(entry), [*handles.values()], notes + served.notes)
    for axes, shown in zip(figure.subplots(len(rows), len(panels), squeeze=False), rows, strict=True):
        settings = entry["points"][next(iter(shown))[1]]
        chats = "held-out chats, up to " if settings.get("dataset") else ""
        axes[0].set_title(f"{chats}{settings['input_tokens']:,} input tokens", loc="left")
        for axis, metric in zip(axes, panels, strict=True):
            if metric == "highest_sustained_rate":
                draw_bars(axis, [""], [(style, [_rate_bar(served, *one)]) for one, style in shown.items()])
                axis.set_ylabel(METRICS[metric].header)
            else:
                _draw_curves(axis, served, shown, metric)
                axis.set_xlabel("Requests a second")
    return Drawing(figure, served.data)


def _draw_curves(axis, served: Served, shown: Mapping[tuple[Case, str], Look], metric: str) -> None:
    """A curve a variant, markers open where the rate was not sustained; 99th percentiles dotted, where requests are enough."""
    drawn = []
    for (case, point), style in reversed(shown.items()):  # the baseline last: where curves meet, it stays visible
        rows, sustained = (served.along(case, name, point) for name in (metric, "sustained"))
        draw_curve(axis, rows, style, ~rows["at"].isin(sustained["at"][sustained["value"] == 0]))
        drawn.append(rows)
        if "median" in metric:
            drawn.append(served.along(case, metric.replace("median", "p99"), point))
            axis.plot("at", "value", data=drawn[-1], color=style.color, linewidth=0.8, linestyle=":")
    every = pd.concat(drawn)
    wide_axis(axis.xaxis, every["at"])
    places = sorted(set(every["at"]))
    places = places[:: 1 + len(places) // 7]
    axis.set_xticks(places, map("{:.3g}".format if "median" in metric else length_label, places))
    wide_axis(axis.yaxis, every["value"], times=metric.endswith("_ms"))
    axis.set_ylabel(METRICS[metric].header)


def _rate_bar(served: Served, case: Case, point: str) -> Bar:
    """From the highest rate that was sustained to the lowest that was not, with the gain that both brackets allow."""
    bar, gain = served.bar(case, "highest_sustained_rate", point), served.find(case, "sustained_rate_speedup", point)
    if bar.value is None or case.unchanged or not gain or gain["low"] is None:
        return bar
    limit, least = served.value(case, "sustained_rate_limit", point), f"{gain['low']:.2f}"
    text = f"≥ {least}×" if gain["high"] == math.inf else f"{least} to\n{show(gain['high'], '.2f|×')}"
    return bar._replace(text=text, limit=limit)


def forward(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch, both with their intervals.

    Dashed are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows, and that speed-up.
    """
    served, (point,) = Served(entry, files), entry["points"]
    shown = {(case, point): look(*case[1:]) for case in served.cases}
    handles = [handle(label(entry, *case[1:]), **style.line) for (case, _), style in shown.items()]
    handles.append(handle(**_LIMIT, **_DASHED))
    figure = new_figure(PAGE, 2.9, heading(entry), handles, served.notes)
    times, gains = figure.subplots(1, 2)
    base = served.along(Case(entry["models"][0]["name"], "baseline"), "forward_ms", point)
    for (case, _), style in shown.items():
        if (limit := served.value(case, "forward_speedup_limit", point)) and not case.unchanged:
            times.plot(base["at"], base["value"] / limit, color=style.color, **_DASHED)
            gains.axhline(limit, color=style.color, **_DASHED)
    for axis, metric in ((times, "forward_ms"), (gains, "forward_speedup")):
        _draw_curves(axis, served, shown, metric)
        axis.set_xlabel("Tokens in the batch")
    return Drawing(figure, served.data)
