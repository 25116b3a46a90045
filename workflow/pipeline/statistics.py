"""Standard errors and intervals: of means, shares, ratios and differences. Every error of an artifact comes from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

ERRORS = 2  # standard errors that an error bar reaches on either side, and from which on a difference is taken for one


class Difference(NamedTuple):
    """A mean difference and its standard error, None where it is not known."""

    value: float
    stderr: float | None

    @property
    def clear(self) -> bool:
        """Whether it is more than `ERRORS` standard errors above zero."""
        return self.stderr is not None and self.value > ERRORS * self.stderr

    @property
    def within_noise(self) -> bool:
        """Whether it is `ERRORS` standard errors from zero at most, or nobody knows."""
        return self.stderr is None or abs(self.value) <= ERRORS * self.stderr


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the standard error of the mean from the sample's standard deviation; None for one value.

    Where all questions come out wrong, or all right, that would be 0: see `share_stderr`.
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    if mean in (0.0, 1.0) and set(values) == {mean}:
        return mean, share_stderr(math.fsum(values), len(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def mean_of_turns(values: Sequence[float]) -> tuple[float, float | None]:
    """As `mean_and_stderr`, of a few measurements: `ERRORS` such errors reach as far as Student's t says for 95 %."""
    from scipy.stats import t

    mean, stderr = mean_and_stderr(values)
    return mean, stderr and stderr * float(t.ppf(0.975, len(values) - 1)) / ERRORS


def share_stderr(hits: float, number: float) -> float:
    """Standard error of the share `hits / number`, of a sample with two hits and two misses more (Agresti and Coull).

    So none or all are not without error, and the interval has about its real width.
    """
    total = number + 4
    share = (hits + 2) / total
    return math.sqrt(share * (1 - share) / total)


def wilson(hits: float, number: int) -> tuple[float, float]:
    """Ends of the Wilson score interval of the share `hits / number`, `ERRORS` standard errors wide on either side.

    It stays within 0 and 1, and is not empty where none or all are hits. E. B. Wilson, JASA 22 (1927).
    """
    squared = ERRORS**2
    middle = (hits + squared / 2) / (number + squared)
    reach = ERRORS * math.sqrt(hits * (number - hits) / number + squared / 4) / (number + squared)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def flips(first: Sequence[float], second: Sequence[float]) -> float:
    """Share of questions that one of two answers rightly (1) and the other wrongly (0).

    Two models may be as often right and yet answer differently. Dutta et al., "Accuracy is Not All You Need" (2024).
    """
    return sum(mine != other for mine, other in zip(first, second, strict=True)) / len(first)


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


def share(hits: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    """As `ratio`, of hits among positions; none or all would have no error, so they get that of `share_stderr`."""
    found = ratio(hits, counts)
    if found["value"] in (0.0, 1.0):
        found["stderr"] = share_stderr(found["value"] * sum(counts), sum(counts))
    return found


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Mean over questions of the first value minus the second, with the standard error of that mean.

    Where no question comes out differently, that error would be 0. It then is that of a sample with one question more
    that the first alone gets right and one that the second alone does.
    """
    differences = [mine - other for mine, other in zip(first, second, strict=True)]
    number = len(differences)
    mean = math.fsum(differences) / number
    if number < 2:
        return Difference(mean, None)
    if not any(differences):
        return Difference(mean, math.sqrt(2 / (number + 1) / (number + 2)))
    squares = math.fsum((one - mean) ** 2 for one in differences)
    return Difference(mean, math.sqrt(squares / (number - 1) / number))


def mean_of(differences: Sequence[Difference]) -> Difference:
    """The mean of independent differences."""
    number, errors = len(differences), [one.stderr for one in differences]
    mean = math.fsum(one.value for one in differences) / number
    known = [error for error in errors if error is not None]
    stderr = math.sqrt(math.fsum(error**2 for error in known)) / number if len(known) == number else None
    return Difference(mean, stderr)


def bracket(low: float, high: float) -> tuple[float, float]:
    """Middle and standard error of a quantity that may lie anywhere between two ends: those of the uniform distribution.

    Two such errors reach past either end.
    """
    return (low + high) / 2, (high - low) / math.sqrt(12)


def quadrature(first: float | None, second: float | None) -> float | None:
    """The standard error of a sum or a difference of two independent quantities; None where one has none."""
    return None if first is None or second is None else math.hypot(first, second)
