"""Figures of servers: rates and their brackets; what is drawn is what was measured."""

import pandas as pd
import pytest
from tests.unit.serving_helpers import (
    CLAIM,
    entry,
    latencies,
    make,
    record,
    shows,
    texts,
    values_csv,
)

from pipeline.artifacts.serving import Case

CASES = [Case("baseline"), Case("swiftkv-50"), Case("swiftkv-50-across4")]
RATES = [1, 2, 4, 8, 16]


def interactive(**more):
    return {
        "interactive-2k": {"input_tokens": 2000, "request_rates": RATES},
        "interactive-8k": {"input_tokens": 8000, "request_rates": RATES},
    } | more


def latency_records(**changes):
    records = []
    for point, slower in (("interactive-2k", 1), ("interactive-8k", 4)):
        for case, capacity in zip(CASES, (5, 9, 9.5), strict=True):
            result = None if (slower, case.variant) == (4, "swiftkv-50") else latencies(capacity / slower)
            records.append(record("latency", point, *case, result, **changes))
    return records


def test_latency_curves_limits_and_boundaries(tmp_path):
    shown = entry("latency", interactive(), CASES)
    made = make(tmp_path, shown, latency_records(), published=values_csv(tmp_path, CLAIM))
    figure, data = made.figure, made.data
    own, legend, title = texts(figure)
    assert "50% SingleInputKV: OOM" in own and {"4 to 8", "8 to 16\n1.00 to 4.00×"} <= set(own)
    named = {"rate not sustained", "highest sustained rate", "highest rate the FLOPs allow", "limit by FLOPs"}
    assert named | {"99th percentile"} <= set(legend)
    assert "paper's Figure 0" in title and "published: 1.2-1.3x" in legend[-1]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["2,000 input tokens", "8,000 input tokens"]
    measured = data[data["row"] == "measured"].set_index(["point", "variant"])
    one = measured.loc[("interactive-2k", "swiftkv-50")]
    assert list(one["ttft_median_ms"]) == [each["ttft_ms"]["median"] for each in latencies(9)["rates"]]
    assert list(measured.loc[("interactive-2k", "baseline"), "sustained"]) == [True, True, True, False, False]
    # The baseline sustains 4 and not 8 requests a second, this one 8 and not 16; FLOPs allow 1.8 times the baseline's.
    assert set(one["highest_sustained_rate"]) == {8} and set(one["lowest_unsustained_rate"]) == {16}
    assert set(one["sustained_rate_speedup"]) == {2.5} and set(one["sustained_rate_speedup_limit"]) == {1.8}
    assert set(one["sustained_rate_speedup_least"]) == {1} and set(one["sustained_rate_speedup_most"]) == {4}
    assert set(one["highest_sustained_rate_limit"]) == {14.4}
    bar = next(bar for bar in figure.axes[4].patches if bar.get_height() == 8)
    whiskers = [line.get_segments()[0] for line in figure.axes[4].collections if len(line.get_segments()[0]) == 2]
    assert any(low[0] == pytest.approx(bar.get_center()[0]) and (low[1], high[1]) == (8, 16) for low, high in whiskers)
    assert {"ttft_mean_ms", "ttft_p99_ms", "tpot_median_ms"} <= set(measured.columns)
    assert measured["status"][("interactive-8k", "swiftkv-50")] == "oom"  # a single row


def test_a_baseline_that_sustains_every_rate_has_no_boundary_to_compare_with(tmp_path):
    records = [record("latency", point, *case, latencies(100)) for point in interactive() for case in CASES]
    made = make(tmp_path, entry("latency", interactive(), CASES), records)
    one = made.data.set_index("variant").loc["swiftkv-50"]
    assert set(one["boundary_found"]) == {False}
    assert one["highest_sustained_rate_limit"].isna().all() and one["sustained_rate_speedup"].isna().all()
    own, legend, _ = texts(made.figure)
    assert "≥ 16" in own and not any("×" in text for text in own)
    assert all(line.get_marker() != "v" for axis in made.figure.axes for line in axis.lines)
    named = {"rate not sustained", "highest sustained rate", "highest rate the FLOPs allow", "limit by FLOPs"}
    assert named.isdisjoint(legend)  # only what is drawn


def test_reductions_are_only_at_rates_of_the_grid_that_both_measured(tmp_path):
    result = latencies(9, rates=(1, 2, 4, 8, 11))
    points = {"p": {"input_tokens": 2000, "request_rates": [1, 2, 4, 16]}}
    records = [
        record("latency", "p", "baseline", "auto", latencies(5, rates=(1, 2, 4, 8))),
        record("latency", "p", "swiftkv-50", "auto", result),
    ]
    data = make(tmp_path, entry("latency", points, CASES[:2]), records).data
    ours = data[data["variant"] == "swiftkv-50"].set_index("request_rate")
    assert ours["ttft_reduction_percent"].dropna().to_dict() == pytest.approx({1: 10, 2: 160 / 7, 4: 64})
    assert ours["tpot_reduction_percent"].dropna().to_dict() == pytest.approx({1: 200 / 27, 2: 800 / 63, 4: 1600 / 81})
    assert ours["baseline_sustained"].dropna().to_dict() == {1: True, 2: True, 4: True}
    assert list(data[data["variant"] == "baseline"]["ttft_reduction_percent"].dropna()) == [0, 0, 0]


def test_a_boundary_that_was_not_reached_is_a_lower_bound(tmp_path):
    records = [
        record("latency", "p", "baseline", "auto", latencies(5)),
        record("latency", "p", "swiftkv-50", "auto", latencies(100)),
    ]
    points = {"p": {"input_tokens": 2000, "request_rates": RATES}}
    made = make(tmp_path, entry("latency", points, CASES), records)
    own, _, _ = texts(made.figure)
    assert "≥ 16\n≥ 2.00×" in own and any("n/a" in text for text in own)
    assert made.data["sustained_rate_speedup"].isna().all() and made.data["sustained_rate_speedup_least"].max() == 2
    assert made.data.groupby("variant")["boundary_found"].first()["baseline"]
    assert not made.data[made.data["variant"] == "swiftkv-50"]["boundary_found"].any()


def test_a_rate_at_which_nothing_was_finished_leaves_a_gap(tmp_path):
    records = [record("latency", "p", "baseline", "auto", latencies(5))]
    records[0]["result"]["rates"][-1]["tpot_ms"] = dict.fromkeys(("mean", "median", "p99"))
    points = {"p": {"input_tokens": 2000, "request_rates": RATES}}
    data = make(tmp_path, entry("latency", points, CASES[:1]), records).data
    assert pd.isna(data["tpot_median_ms"].iloc[-1]) and pd.isna(data["tpot_reduction_percent"].iloc[-1])


def test_all_points_together_dashed_with_speculation_and_against_the_plain_baseline(tmp_path):
    chats = {"input_tokens": 8000, "request_rates": RATES, "dataset": "chats"}
    points = {"off": chats, "on": chats | {"speculative": {"method": "ngram"}}}
    records = [
        record("latency", point, variant, "auto", latencies(5, tpot=tpot))
        for point, tpot in (("off", 8), ("on", 6))
        for variant in ("baseline", "swiftkv-50")
    ]
    made = make(tmp_path, entry("latency", points, CASES[:2], together=True), records)
    legend = texts(made.figure)[1]
    names = ["Baseline", "Baseline, n-gram speculation", "50% SingleInputKV", "50% SingleInputKV, n-gram speculation"]
    assert legend[:4] == names and "held-out chats" in made.figure.get_suptitle()
    assert len(made.figure.axes) == 3
    assert list(made.data.groupby(["variant", "speculative"]).size()) == [5, 5, 5, 5]
    faster = made.data[made.data["speculative"]].groupby("variant")["tpot_reduction_percent"].first()
    assert faster.to_dict() == {"baseline": 25, "swiftkv-50": 25}
    only = {"on": points["on"]}
    alone = make(tmp_path, entry("latency", only, CASES[:2], together=True), records[2:]).data
    assert alone["tpot_reduction_percent"].isna().all()


def test_what_is_drawn_is_the_data(tmp_path):
    drawn = make(tmp_path, entry("latency", interactive(), CASES), latency_records())
    assert shows(drawn, 0, "ttft_median_ms")
