"""Figures of servers: rates and their brackets; what is drawn is what was measured."""

import pandas as pd
import pytest
from tests.unit.serving_helpers import CLAIM, entry, latencies, make, record, shows, texts, values_csv

from pipeline.artifacts.serving import Case

CASES = [Case("baseline"), Case("swiftkv-50"), Case("swiftkv-50-across4")]
RATES = [1, 2, 4, 8, 16]


def two(*results):
    """Records of the baseline and of swiftkv-50 at one point."""
    return [record("latency", "p", case.variant, "auto", result) for case, result in zip(CASES, results, strict=False)]


def test_latency_curves_limits_and_boundaries(tmp_path):
    points = {f"interactive-{k}k": {"input_tokens": 1000 * k, "request_rates": RATES} for k in (2, 8)}
    records = []
    for point, slower in zip(points, (1, 4), strict=True):
        for case, capacity in zip(CASES, (5, 9, 9.5), strict=True):
            result = None if (slower, case.variant) == (4, "swiftkv-50") else latencies(capacity / slower)
            records.append(record("latency", point, *case, result))
    made = make(tmp_path, entry("latency", points, CASES), records, published=values_csv(tmp_path, CLAIM))
    own, legend, _ = texts(made.figure)
    assert "50% SingleInputKV: OOM" in own and {"4 to 8", "8 to 16\n1.00 to 4.00×"} <= set(own)
    assert "published: 1.2-1.3x" in legend[-1] and shows(made, 0, "ttft_median_ms")
    measured = made.data[made.data["row"] == "measured"].set_index(["point", "variant"])
    one = measured.loc[("interactive-2k", "swiftkv-50")]
    assert list(one["ttft_median_ms"]) == [each["ttft_ms"]["median"] for each in latencies(9)["rates"]]
    assert list(measured.loc[("interactive-2k", "baseline"), "sustained"]) == [True, True, True, False, False]
    # The baseline sustains 4 and not 8 requests a second, this one 8 and not 16; FLOPs allow 1.8 times the baseline's.
    expected = {
        "highest_sustained_rate": 8, "lowest_unsustained_rate": 16, "sustained_rate_speedup": 2.5,
        "sustained_rate_speedup_limit": 1.8, "sustained_rate_speedup_least": 1, "sustained_rate_speedup_most": 4,
        "highest_sustained_rate_limit": 14.4,
    }  # fmt: skip
    assert {name: one[name].iloc[0] for name in expected} == expected
    assert measured["status"][("interactive-8k", "swiftkv-50")] == "oom"  # a single row


def test_reductions_are_only_at_rates_of_the_grid_that_both_measured(tmp_path):
    points = {"p": {"input_tokens": 2000, "request_rates": [1, 2, 4, 16]}}
    records = two(latencies(5, rates=(1, 2, 4, 8)), latencies(9, rates=(1, 2, 4, 8, 11)))
    records[1]["result"]["rates"][0]["tpot_ms"] = dict.fromkeys(("mean", "median", "p99"))  # nothing was finished
    data = make(tmp_path, entry("latency", points, CASES[:2]), records).data
    ours = data[data["variant"] == "swiftkv-50"].set_index("request_rate")
    assert ours["ttft_reduction_percent"].dropna().to_dict() == pytest.approx({1: 10, 2: 160 / 7, 4: 64})
    assert ours["tpot_reduction_percent"].dropna().to_dict() == pytest.approx({2: 800 / 63, 4: 1600 / 81})
    assert pd.isna(ours.loc[1, "tpot_median_ms"])
