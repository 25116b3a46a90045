"""Confidence intervals: against scipy, published values, and coverage in simulations."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from pipeline.statistics import (
    MANY,
    Estimate,
    estimate,
    hodges_lehmann,
    mean_of,
    of_turns,
    paired_difference,
    rank_correlation,
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


def test_paired_differences_are_those_of_scipy_and_cover():
    random = np.random.default_rng(1)
    first, second = random.normal(1, 1, 40), random.normal(0, 1, 40)
    found = paired_difference(first.tolist(), second.tolist())
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))

    def trial(random):
        hard = random.random(40)  # questions differ in difficulty, which both models share
        answers = [(random.random(40) < hard * skill).astype(float).tolist() for skill in (0.9, 0.6)]
        return paired_difference(*answers)

    assert 0.925 < coverage(trial, 0.5 * 0.3) < 0.975


def test_questions_that_all_come_out_alike_leave_an_interval():
    found = paired_difference([1.0] * 40, [1.0] * 40)
    assert found.value == 0 and 0.02 < found.high < 0.1


@pytest.mark.parametrize("disturbed", [0, 0.1])
@pytest.mark.parametrize("turns", [4, 8, 10, 12])
def test_turns_cover_the_ratio_of_times(turns, disturbed):
    def trial(random):
        load = np.exp(random.normal(0, 0.2, turns))  # of the machine, the same for both sides of a turn
        baseline, own = (seconds * load * np.exp(random.normal(0, 0.03, turns)) for seconds in (3.0, 2.0))
        for times in (baseline, own):  # another program runs during one side of a turn
            times *= np.exp(random.uniform(0.1, 0.6, turns) * (random.random(turns) < disturbed / 2))
        return ratio_of_turns(baseline.tolist(), own.tolist())

    # 5,000 trials differ by 0.3 points; of few turns, Student's t is too wide where some were disturbed.
    assert 0.935 < coverage(trial, 1.5, trials=5000) < (0.99 if disturbed and turns < MANY else 0.968)


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


def test_means_of_estimates_and_ratios_over_documents_cover():
    def average(random):
        scores = [random.binomial(200, share) / 200 for share in (0.3, 0.6, 0.8)]
        return mean_of([estimate(score, math.sqrt(score * (1 - score) / 200)) for score in scores])

    def closeness(random):
        positions = random.integers(20, 200, 50)
        sums = positions * np.exp(random.normal(0, 0.5, 50))
        found = ratio(sums.tolist(), positions.tolist())
        return estimate(found["value"], found["stderr"], found["n"])

    assert 0.925 < coverage(average, (0.3 + 0.6 + 0.8) / 3) < 0.975
    assert 0.91 < coverage(closeness, math.exp(0.125)) < 0.975


def test_a_rank_correlation_is_as_sure_as_the_order_of_its_numbers():
    def of(kept, error=0.01):
        first, second = ([Estimate(x, None, x - error, x + error) for x in each] for each in ((1, 2, 3, 4), kept))
        return rank_correlation(first, second)

    assert of((9, 7, 8, 1))[2:] == pytest.approx((-0.8, -0.8))
    assert of((1, 5, 7, 9)).value == pytest.approx(1)
    assert of((1, 5, 7, 9), error=9).low < 0


def test_the_interval_of_many_turns_is_fast_and_goes_on_from_the_exact_one(monkeypatch):
    values = np.random.default_rng(2).normal(0, 1, 60).tolist()
    found = hodges_lehmann(values)
    monkeypatch.setattr("pipeline.statistics.LARGE", 60)
    assert found == pytest.approx(hodges_lehmann(values), abs=0.01)
    monkeypatch.undo()
    started = time.monotonic()
    found = hodges_lehmann(np.random.default_rng(3).normal(0, 1, 1100))
    assert time.monotonic() - started < 2 and -0.15 < found.low < 0 < found.high < 0.15
