"""Confidence intervals of 95 %: of means, shares, ratios and differences. Every interval of an artifact comes from here.

scipy computes them: Student's t where a standard error is measured over n values, Wilson's score interval for shares of few
questions. Times are estimated by their logarithms: of many turns by Hodges and Lehmann, of few by the geometric mean.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any, NamedTuple

LEVEL = 0.95
MAX_EXACT_RANKS = 50  # samples up to which the signed-rank sum is exact; above it is taken for normal
MIN_FOR_HODGES_LEHMANN = 8  # samples needed for the signed-rank interval; that of 5 does not reach 95 %


class Estimate(NamedTuple):
    """A value with its standard error and 95 % confidence interval; None where nothing was measured twice."""

    value: float
    stderr: float | None = None
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit; `factor` is positive."""
        return Estimate(*(None if number is None else factor * number for number in self))

    def complement(self) -> Estimate:
        """Return one minus the estimate: of a share that is left, the share that is saved."""
        return Estimate(*(None if number is None else 1 - number for number in (self.value, None, self.high, self.low)))

    def inverse(self) -> Estimate:
        """One over it; of a positive value."""
        ends = (None if end is None else 1 / end for end in (self.high, self.low))
        return Estimate(1 / self.value, self.stderr and self.stderr / self.value**2, *ends)


def estimate(value: float, stderr: float | None = None, n: int | None = None) -> Estimate:
    """An estimate from a standard error: Student's t of n - 1 degrees of freedom, the normal distribution without n.

    Args:
        value, stderr: as measured; without a standard error there is no interval.
        n: number of values that the standard error was measured over.
    """
    from scipy import stats

    if stderr is None or (n is not None and n < 2):
        return Estimate(value)
    upper = 0.5 + LEVEL / 2
    reach = stderr * (stats.norm.ppf(upper) if n is None else stats.t.ppf(upper, n - 1))
    return Estimate(value, stderr, value - reach, value + reach)


def exact(value: float) -> Estimate:
    """A count, or a number that follows from dimensions: its interval is itself."""
    return Estimate(value, 0.0, value, value)


def wilson(hits: float, number: int) -> tuple[float, float]:
    """Ends of the Wilson score interval of the share `hits / number`; not empty where none or all are hits."""
    from scipy import stats

    return stats.binomtest(round(hits), number).proportion_ci(LEVEL, method="wilson")


def of_turns(times: Sequence[float]) -> Estimate:
    """Estimate a time that was measured repeatedly, on a logarithmic scale.

    With `MIN_FOR_HODGES_LEHMANN` times or more, one of which may have met another program, by `hodges_lehmann`; with fewer by
    the geometric mean and Student's t. Of 12 turns, one in ten of which is 10 to 80 % off, both hold 95 %, the former in a
    third of the width.
    """
    logs = [math.log(time) for time in times]
    found = hodges_lehmann(logs) if len(logs) >= MIN_FOR_HODGES_LEHMANN else estimate(*mean_and_stderr(logs), len(logs))
    value, ends = math.exp(found.value), (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Estimate(value, found.stderr and found.stderr * value, *ends)


def hodges_lehmann(values: Sequence[float]) -> Estimate:
    """Estimate the center of a symmetric distribution by the median of all means of two values (Hodges and Lehmann, 1963).

    Its interval is that of Wilcoxon's signed-rank test, of at least 95 % for 6 values or more.
    """
    import numpy as np
    from scipy import stats

    number = len(values)
    means = np.add.outer(values, values)[np.triu_indices(len(values))] / 2
    means.sort()
    if number > MAX_EXACT_RANKS:
        deviation = math.sqrt(number * (number + 1) * (2 * number + 1) / 24)
        outside = int(number * (number + 1) / 4 - stats.norm.ppf(0.5 + LEVEL / 2) * deviation)
    else:
        # How many of the 2^n choices of signs give each sum of positive ranks
        choices = functools.reduce(np.convolve, ([1.0] + rank * [0.0] + [1.0] for rank in range(number)))
        outside = int(np.searchsorted(np.cumsum(choices) / 2**number, (1 - LEVEL) / 2, side="right"))
    return Estimate(np.median(means), None, means[outside - 1], means[-outside])


def ratio_of_turns(baseline: Sequence[float], own: Sequence[float]) -> Estimate:
    """Estimate baseline time over own time, as `of_turns`, where turn for turn both were measured one after the other."""
    return of_turns([first / second for first, second in zip(baseline, own, strict=True)])


def ratio_of_repeats(baseline: Sequence[float], own: Sequence[float]) -> Estimate:
    """The ratio of the geometric means of independently repeated times, with Welch's interval of the logarithms.

    Times measured once give a ratio without an interval.
    """
    from scipy import stats

    logs = [[math.log(time) for time in times] for times in (baseline, own)]
    value = math.exp(fmean(logs[0]) - fmean(logs[1]))
    if min(map(len, logs)) < 2:
        return Estimate(value)
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval(LEVEL)
    return Estimate(value, None, math.exp(low), math.exp(high))


def independent_ratio(first: Estimate, second: Estimate) -> Estimate:
    """The first over the second, from the halves of their intervals on a logarithmic scale; without both it has none."""
    value = first.value / second.value
    if not all(one.low and one.high for one in (first, second)):
        return Estimate(value)
    reach = math.hypot(*(math.log(one.high / one.low) / 2 for one in (first, second)))
    return Estimate(value, None, value * math.exp(-reach), value * math.exp(reach))


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the standard error of the mean from the sample's standard deviation; None for one value.

    Where all questions come out wrong, or all right, that would be 0: see `share_stderr`.
    """
    mean = fmean(values)
    if len(values) < 2:
        return mean, None
    if set(values) in ({0.0}, {1.0}):
        return mean, share_stderr(math.fsum(values), len(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def share_stderr(hits: float, number: float) -> float:
    """Standard error of the share `hits / number`, of a sample with two hits and two misses more (Agresti and Coull).

    So none or all are not without error, and the interval has about its real width.
    """
    total = number + 4
    share = (hits + 2) / total
    return math.sqrt(share * (1 - share) / total)


def ratio(sums: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    """Sum over sum as `value`, `stderr` and `n`: a linearized ratio estimator over documents.

    Args:
        sums: one sum for each document; one document alone has no standard error.
        counts: how many values each sum adds up.
    """
    n, total = len(sums), sum(counts)
    value = math.fsum(sums) / total
    squares = math.fsum((part - value * count) ** 2 for part, count in zip(sums, counts, strict=True))
    return {"value": value, "stderr": math.sqrt(squares * n / (n - 1)) / total if n > 1 else None, "n": n}


def bootstrapped_ratio(above: Collection[float], below: Collection[float]) -> Estimate:
    """Sum over sum; the interval is of bootstrap samples of the items, each with its number above and below."""
    from scipy import stats

    value = math.fsum(above) / math.fsum(below)
    if len(above) < 2:
        return Estimate(value)
    found = stats.bootstrap(
        (above, below),
        lambda first, second, axis: first.sum(axis) / second.sum(axis),
        paired=True,
        n_resamples=2000,
        confidence_level=LEVEL,
        method="percentile",
        rng=0,
    )
    return Estimate(value, found.standard_error, *found.confidence_interval)


def rank_correlation(first: Sequence[Estimate], second: Sequence[Estimate]) -> Estimate:
    """Return Spearman's rank correlation of two series of equal length.

    The interval is of series drawn from normal distributions with the intervals of the numbers: it says how sure the order
    of these numbers is, not what others would give. There is none where a number has none.
    """
    import numpy as np
    from scipy import stats

    values, *ends = np.array([[one[0], one[2], one[3]] for one in (*first, *second)], float).T.reshape(3, 2, -1)
    deviations = (ends[1] - ends[0]) / 4
    drawn = np.random.default_rng(0).normal(values, deviations, (2000, *values.shape))
    apart = np.diff(stats.rankdata(drawn, axis=2), axis=1)[:, 0]
    number = len(first)
    found = 1 - 6 * (apart**2).sum(axis=1) / (number * (number**2 - 1))
    value = stats.spearmanr(*values).statistic
    if np.isnan(deviations).any():
        return Estimate(value)
    return Estimate(value, None, *np.quantile(found, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]))


def share(hits: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    """As `ratio`, of hits among positions; none or all would have no error, so they get that of `share_stderr`."""
    found = ratio(hits, counts)
    if found["value"] in (0.0, 1.0):
        found["stderr"] = share_stderr(found["value"] * sum(counts), sum(counts))
    return found


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Mean over questions of the first value minus the second.

    Where no question comes out differently, the standard error would be 0. It then is that of a sample with one question
    more that the first alone gets right and one that the second alone does.
    """
    differences = [mine - other for mine, other in zip(first, second, strict=True)]
    (mean, stderr), number = mean_and_stderr(differences), len(differences)
    if number > 1 and not any(differences):
        stderr = math.sqrt(2 / (number + 1) / (number + 2))
    return estimate(mean, stderr, number)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates; without an interval where one of them has no standard error."""
    number, errors = len(estimates), [one.stderr for one in estimates]
    stderr = None if None in errors else math.hypot(*errors) / number
    return estimate(fmean(one.value for one in estimates), stderr)
