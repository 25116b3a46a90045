"""Figures of serving: throughput by input length, latency by request rate, and forward passes by batch size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping

import pandas as pd

from pipeline.artifacts import Entry, Files, Row, inputs
from pipeline.artifacts.drawing import (
    Bar,
    Drawing,
    Look,
    draw_bars,
    draw_curve,
    handle,
    label_ends,
    looks,
    new_figure,
    wide_axis,
)
from pipeline.artifacts.frame import interval
from pipeline.artifacts.labels import case_label
from pipeline.artifacts.metrics import METRICS, MISSING, OOM, show
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.rates import P99_REQUESTS
from pipeline.artifacts.records import Case
from pipeline.statistics import exact, independent_ratio
from pipeline.text import length_label, span

_LIMIT = {"label": "possible by FLOPs", "color": "black"}
_BLANK = {"oom": OOM, "ok": "none"}  # in place of a number, by status
_DASHED = {"linewidth": 0.8, "linestyle": (0, (6, 2))}  # the limit of a curve; over a bar it is a dash


_POSSIBLE = "Possible: what FLOPs alone allow; memory traffic and caches may change it."


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
            f"{case_label(entry, row.variant, row.kv_cache)}: {_BLANK.get(row.status, MISSING)} ({row.reason})"
            for row in self.rows[self.rows["status"] != "ok"].itertuples()
        )
        published = [f"published: {stated}"] if stated else []
        self.notes = [*published, *gaps, "Bands and whiskers: 95% intervals.", *self.notes]
        self.looks = {
            (variant, kv_cache): style._replace(second=kv_cache == "fp8")
            for variant, style in looks(variant for variant, _ in entry["cases"]).items()
            for kv_cache in ("auto", "fp8")
        }

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
    handles = [handle(case_label(entry, *case), box=True, **served.looks[*case].fill) for case in entry["cases"]]
    handles.append(handle(**_LIMIT))
    served.notes.insert(0, _POSSIBLE)
    figure = new_figure(0.4 + 2.4 * len(metrics), entry, handles, [*_decoding(served), *served.notes])
    axes = figure.subplots(len(metrics), len(entry["models"]), squeeze=False)
    groups = [length_label(point["input_tokens"]) for point in entry["points"].values()]
    for metric, row in zip(metrics, axes, strict=True):
        for model, axis in zip(entry["models"], row, strict=True):
            bars = [
                (served.looks[case[1:]], [_with_gain(served, metric, case, point) for point in entry["points"]])
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
    """Yield a note on the share of time in steps without prompts, which SwiftKV cannot shorten."""
    rows = served.of("decode_only_percent")
    shares = rows[rows["variant"] == "baseline"]["value"].dropna()
    if len(shares):
        yield f"Steps that only decode take {span(shares, '.0f')}% of the unchanged model's time."


def _with_gain(served: Served, metric: str, case: Case, point: str) -> Bar:
    """A bar with its speed-up and the one that the FLOP count allows; its limit is as far above it as that above the first."""
    bar, gain = served.bar(case, metric, point), served.value(case, "speedup", point)
    if bar.value is None or case.unchanged or gain is None:
        return bar
    words, most = show(gain, ".2f|×"), served.value(case, "speedup_limit", point)
    if not most:
        return bar._replace(text=words)
    return bar._replace(text=words, more=f"\npossible:\n{show(most, '.2f|×')}", limit=bar.value * most / gain)


def _of_node(served: Served, node_gpus: int) -> Iterator[Row]:
    """The throughput of a node of replicas, and over that of the first model's baseline on the same kind of device."""
    first, nodes, bases = Case(served.entry["models"][0]["name"], "baseline"), [], {}
    for record in served.records:
        case = record.case
        row = served.find(case, "tokens_per_second", record.what)
        if row and row["value"]:
            speed = interval(row).scaled(node_gpus / record.devices if record.gpus else 1)
            condition = record.what, record.device, record.engine.get("vllm"), record.engine.get("compilation")
            nodes.append((case, row, speed, condition))
            if case == first:
                bases[condition] = speed
    for case, row, speed, condition in nodes:
        yield row | speed._asdict() | {"metric": "node_tokens_per_second"}
        if condition in bases:
            gain = exact(1.0) if case == first else independent_ratio(speed, bases[condition])
            yield row | gain._asdict() | {"metric": "speedup_over_first_model", "unit": "×"}


def latency(entry: Entry, files: Files) -> Drawing:
    """TTFT, TPOT and the highest sustained rate of one model; one row a point, or one for all with `together`."""
    served, styles, handles = Served(entry, files), {}, {}
    for point, settings in entry["points"].items():
        method = (settings.get("speculative") or {}).get("method", "")
        for case in served.cases:
            style = served.looks[case[1:]]
            styles[case, point] = style._replace(second=style.second or bool(method))
            name = case_label(entry, *case[1:]) + (
                f", {method.replace('ngram', 'n-gram')} speculation" if method else ""
            )
            handles[name] = styles[case, point]
    rows = [styles]
    if not entry.get("together"):
        rows = [{one: styles[one] for one in styles if one[1] == point} for point in entry["points"]]
    few = 0 < served.of("ttft_median_ms")["at"].nunique() < 3  # too few for a curve
    handles = {name: handle(name, box=few, **(style.fill if few else style.line)) for name, style in handles.items()}
    panels = ["ttft_median_ms", "tpot_median_ms"]
    if served.of("highest_sustained_rate")["high"].notna().any():
        panels.append("highest_sustained_rate")
        handles["limit"] = handle(**_LIMIT)
        served.notes[:0] = ["Dotted outline: up to the lowest rate that was not sustained.", _POSSIBLE]
    dotted = served.rows["metric"].str.endswith("_p99_ms") & served.rows["value"].notna()
    opened = (served.of("sustained")["value"] == 0).any()
    notes = ["Open markers: the rate was not sustained."] if opened and not few else []
    notes += (
        [f"Dotted lines: 99th percentile, of {P99_REQUESTS} requests a run or more."]
        if dotted.any() and not few
        else []
    )
    if len(sizes := served.of(panels[0])["n"].dropna()):
        runs = max(len(rate["runs"]) for record in served.records if record.ok for rate in record.result["rates"])
        notes.append(f"Each point is of {span(sizes, ',.0f')} requests, in {runs} run{'s' * (runs > 1)}.")
    figure = new_figure(0.4 + 2.3 * len(rows), entry, [*handles.values()], notes + served.notes)
    for axes, shown in zip(figure.subplots(len(rows), len(panels), squeeze=False), rows, strict=True):
        settings = entry["points"][next(iter(shown))[1]]
        chats = "held-out chats, up to " if settings.get("dataset") else ""
        axes[0].set_title(f"{chats}{settings['input_tokens']:,} input tokens", loc="left")
        for axis, metric in zip(axes, panels, strict=True):
            if metric == "highest_sustained_rate":
                draw_bars(axis, [""], [(style, [_rate_bar(served, *one)]) for one, style in shown.items()])
                axis.set_ylabel(METRICS[metric].header)
                continue
            if few:
                rates = sorted(served.of(metric)["at"].dropna().unique())
                bars = {one: [_at(served, metric, *one, rate) for rate in rates] for one in shown}
                draw_bars(axis, list(map("{:g}".format, rates)), [(shown[one], found) for one, found in bars.items()])
                axis.set_ylabel(METRICS[metric].header)
            else:
                _draw_curves(axis, served, shown, metric)
            axis.set_xlabel("Requests a second")
    return Drawing(figure, served.data)


def _at(served: Served, metric: str, case: Case, point: str, rate: float) -> Bar:
    row = served.find(case, metric, point, rate)
    return Bar(row["value"], row["low"], row["high"]) if row else Bar(None, text=MISSING)


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
    places: list[float] = []
    for place in sorted(set(every["at"])):  # so far apart that their numbers do not touch
        ends = [(axis.transScale + axis.transLimits).transform((x, 1))[0] for x in (*places[-1:], place)]
        if not places or ends[1] - ends[0] > 0.16:
            places.append(place)
    axis.set_xticks(places, map("{:.3g}".format if "median" in metric else length_label, places))
    wide_axis(axis.yaxis, every["value"], times=metric.endswith("_ms"))
    axis.set_ylabel(METRICS[metric].header)


def _rate_bar(served: Served, case: Case, point: str) -> Bar:
    """The highest rate that was sustained, an outline to the lowest that was not, and the gain that both brackets allow."""
    bar, gain = served.bar(case, "highest_sustained_rate", point), served.find(case, "sustained_rate_speedup", point)
    if bar.value is None:
        return bar
    known = bar.high is not None and bar.high < math.inf
    bar = Bar(bar.value, upto=bar.high if known else None, text="" if known else f"≥ {bar.value:g}")
    if case.unchanged or not gain or gain["low"] is None:
        return bar
    limit, least = served.value(case, "sustained_rate_limit", point), f"{gain['low']:.2f}"
    text = f"≥ {least}×" if gain["high"] == math.inf else f"{least}–\n{show(gain['high'], '.2f|×')}"
    return bar._replace(text=text, limit=limit)


def forward(entry: Entry, files: Files) -> Drawing:
    """Time of a forward pass and speed-up over the baseline by tokens in the batch, both with their intervals.

    Dashed are limits: the baseline's time divided by the prefill speed-up that the FLOP count allows, and that speed-up.
    """
    served, (point,) = Served(entry, files), entry["points"]
    shown = {(case, point): served.looks[case[1:]] for case in served.cases}
    figure = new_figure(2.6, entry, [handle(**_LIMIT, **_DASHED)], [_POSSIBLE, *served.notes])
    times, gains = figure.subplots(1, 2)
    base = served.along(Case(entry["models"][0]["name"], "baseline"), "forward_ms", point)
    for (case, _), style in shown.items():
        if (limit := served.value(case, "forward_speedup_limit", point)) and not case.unchanged:
            times.plot(base["at"], base["value"] / limit, color=style.color, **_DASHED)
            gains.axhline(limit, color=style.color, **_DASHED)
    for axis, metric in ((times, "forward_ms"), (gains, "forward_speedup")):
        _draw_curves(axis, served, shown, metric)
        axis.set_xlabel("Prompt tokens in the batch")
    ends = []
    for case, _ in shown:
        if len(rows := served.along(case, "forward_speedup", point)):
            name = "\n".join(textwrap.wrap(case_label(entry, *case[1:]), 14))
            ends.append((*rows.iloc[-1][["at", "value"]], name, shown[case, point].color))
    label_ends(gains, ends)
    return Drawing(figure, served.data)
