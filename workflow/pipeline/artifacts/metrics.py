"""Load the metrics of metrics.yaml (the measurement that has each, its column, its format), and format values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
