"""Load the metrics of metrics.yaml (the measurement that has each, its column, its format), and format values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import load_yaml

MISSING, OOM, NONE = "n/a", "OOM", "–"
IN_NOISE = "≈"  # before a number whose interval holds what it is compared with
AT_CHANCE = "at chance"  # in the header of a column that has no number above guessing
SPACE = "\N{NO-BREAK SPACE}"


class Metric(NamedTuple):
    """A metric.

    Attributes:
        measure: kind of the records that have it; "spec" is the variant's rewiring, "cost" the model's dimensions.
        header: of its column; may hold line breaks.
        form: ".2f" and the like, "s3" for three significant digits; the part behind a bar follows the number: ".2f|×".
        unit: of its values.
        path: its place in the result of a record, in dots; empty if it is computed otherwise.
        factor: of the number at `path`.
        counted: whether it has no error.
        limit: its place among the costs of a record, by the FLOP count or the cost model.
        note: below tables that have it.
        tolerance: of a comparison with another run, see metrics.yaml; None if it is not compared.
    """

    measure: str
    header: str
    form: str = ".2f"
    unit: str = ""
    path: str = ""
    factor: float = 1
    counted: bool = False
    limit: str = ""
    note: str = ""
    tolerance: Mapping[str, float] | None = None


# Which input of an artifact holds the records of a measure.
INPUTS = {
    "score": "scores", "fidelity": "fidelity", "early_exit": "early_exit", "similarity": "similarity",
    "reading": "reading", "training": "training", "throughput": "serving", "latency": "serving", "forward_time": "serving",
    "kv_capacity": "serving", "decode": "serving", "answer": "serving",
}  # fmt: skip
METRICS = {
    name: Metric(measure, **about)
    for measure, metrics in load_yaml(Path(__file__).with_name("metrics.yaml")).items()
    for name, about in metrics.items()
}


def of_measure(measure: str) -> dict[str, Metric]:
    """Return the metrics of one kind of records."""
    return {name: metric for name, metric in METRICS.items() if metric.measure == measure}


def _decimals(value: float, digits: int) -> int:
    """Decimals that leave so many significant digits; none where a whole number has more."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def significant(value: float, digits: int) -> float:
    """Round to significant digits, but never coarser than a whole number."""
    return round(value, _decimals(value, digits))


def show(value: float, form: str) -> str:
    """Format a value by a form of `Metric`: 4.3, 113 and 0.020 in "s2"; 1.25× in ".2f|×"."""
    form, _, suffix = form.partition("|")
    sign, _, digits = form.partition("s")
    if digits:
        value = significant(value, int(digits))
        form = f"{sign},.{_decimals(value, int(digits))}f"
    return f"{value:{form}}{suffix}"


def show_interval(value: float, low: float | None, high: float | None, form: str) -> str:
    """Format a value and its interval: `value ± half` if symmetric, `≥ value` if open above, else `value [low, high]`."""
    text = show(value, form)
    if low is None or high is None or low == high:
        return text
    if high == math.inf:
        return f"≥ {text}"
    plain = form.partition("|")[0].lstrip("+")
    reach = (high - low) / 2
    if abs(high - value - reach) < 1e-6 * reach:
        if plain.startswith("s"):  # as many decimals as the value
            plain = f".{len(text.partition('.')[2])}f"
        return f"{text}{SPACE}±{SPACE}{show(reach, plain)}"
    return f"{text}{SPACE}[{show(low, plain)},{SPACE}{show(high, plain)}]"


def percent(fraction: float) -> str:
    """Format a fraction as an exact percentage if three decimals are enough (46.875%), else with one decimal (53.3%)."""
    value = 100 * fraction
    exact = round(value, 3)
    return f"{exact:g}%" if abs(value - exact) < 1e-9 else f"{value:.1f}%"


def length_label(tokens: float) -> str:
    """Format a number of tokens as the paper does: 2000 is 2K, 4096 is 4K, 512 is 512."""
    for thousand in (1000, 1024):
        if tokens >= thousand and tokens % thousand == 0:
            return f"{tokens / thousand:g}K"
    return f"{tokens:,.0f}"


def span(values: Iterable[Any], form: str = ",g") -> str:
    """Format the least and the most of some values: `2 to 5`, or `2` if they are the same."""
    return " to ".join(dict.fromkeys(format(end, form) for end in (min(values), max(values))))


def enumeration(items: Sequence[str]) -> str:
    """Join words: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else "none"


def some(items: Sequence[str], most: int = 3) -> str:
    """Join the first of many words: `a, b, c and 7 more`."""
    return enumeration(items if len(items) <= most + 1 else [*items[:most], f"{len(items) - most} more"])
