"""Confidence intervals: against scipy, published values, and coverage in simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.statistics import (
    estimate,
    hodges_lehmann,
    of_turns,
    paired_difference,
    ratio,
    ratio_of_repeats,
    ratio_of_turns,
    wilson,
)


def coverage(interval, truth, trials=2000):
    """Share of simulated intervals that hold the truth; each trial has its own seed."""
    held = 0
    for seed in range(trials):
        found = interval(np.random.default_rng(seed))
        held += found.low <= truth <= found.high
    return held / trials


def test_paired_differences_are_those_of_scipy():
    random = np.random.default_rng(1)
    first, second = random.normal(1, 1, 40), random.normal(0, 1, 40)
    found = paired_difference(first.tolist(), second.tolist())
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_questions_that_all_come_out_alike_leave_an_interval():
    found = paired_difference([1.0] * 40, [1.0] * 40)
    assert found.value == 0 and 0.02 < found.high < 0.1


def test_few_turns_have_the_interval_of_student_s_test_of_logarithms():
    baseline, own = [3.1, 3.0, 3.3, 2.9, 3.2, 3.0, 3.1], [2.0, 2.1, 2.0, 1.8, 2.2, 1.9, 2.1]
    found, logs = ratio_of_turns(baseline, own), np.log(np.divide(baseline, own))
    assert (found.low, found.high) == pytest.approx(np.exp(stats.ttest_1samp(logs, 0).confidence_interval(0.95)))


def test_one_disturbed_turn_of_twelve_moves_the_ratio_little():
    own = np.exp(np.random.default_rng(0).normal(0, 0.01, 12))
    quiet, disturbed = (ratio_of_turns([3.0] * 12, (own * slow).tolist()) for slow in (1, [5] + [1] * 11))
    assert disturbed.low > 0.98 * quiet.low and disturbed.high < 1.02 * quiet.high


def test_intervals_of_turns_are_those_of_the_signed_rank_test():
    values = np.random.default_rng(3).normal(0.1, 1, 10)
    found = hodges_lehmann(values.tolist())
    inside, outside = ([end + step for end, step in zip((found.low, found.high), steps, strict=True)]
                       for steps in ((1e-9, -1e-9), (-1e-9, 1e-9)))  # fmt: skip
    assert all(stats.wilcoxon(values - end, method="exact").pvalue > 0.05 for end in inside)
    assert all(stats.wilcoxon(values - end, method="exact").pvalue <= 0.05 for end in outside)


def test_repeats_cover_the_ratio_of_times():
    def trial(random):
        return ratio_of_repeats(*(np.exp(random.normal(mean, 0.1, 5)).tolist() for mean in (math.log(3), math.log(2))))

    assert 0.925 < coverage(trial, 1.5) < 0.98
    # Of what is measured once there is no interval.
    assert ratio_of_repeats([4.0], [2.0]) == (pytest.approx(2.0), None, None, None)
    assert of_turns([2.0])[1:] == ratio_of_turns([2.0], [1.0])[1:] == (None, None, None)
    assert estimate(1.0, None).low is None


def test_wilson_intervals_are_the_published_ones():
    """Against Table 1 of Newcombe (1998), Statistics in Medicine 17."""
    for hits, number, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (29, 29, 0.8830, 1.0)):
        assert wilson(hits, number) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_ratios_over_documents_cover():
    def closeness(random):
        positions = random.integers(20, 200, 50)
        sums = positions * np.exp(random.normal(0, 0.5, 50))
        found = ratio(sums.tolist(), positions.tolist())
        return estimate(found["value"], found["stderr"], found["n"])

    assert 0.91 < coverage(closeness, math.exp(0.125)) < 0.975


def test_the_interval_of_many_turns_goes_on_from_the_exact_one(monkeypatch):
    values = np.random.default_rng(2).normal(0, 1, 60).tolist()
    found = hodges_lehmann(values)
    monkeypatch.setattr("pipeline.statistics.MAX_EXACT_RANKS", 60)
    assert found == pytest.approx(hodges_lehmann(values), abs=0.01)
