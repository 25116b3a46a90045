"""How numbers and variants are printed in tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def significant(value: float, digits: int) -> float:
    """`value` rounded to `digits` significant digits, but never coarser than a whole number."""
    if value == 0:
        return 0.0
    return round(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def show(value: float, digits: int) -> str:
    """`value` printed with `digits` significant digits, whole from there on: 4.3, 113, 0.020."""
    rounded = significant(value, digits)
    decimals = 0 if rounded == 0 else max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def digits(number: int) -> Callable[[float], str]:
    """`show` with so many significant digits."""
    return lambda value: show(value, number)


def percent(fraction: float) -> str:
    """A fraction as an exact percentage where three decimals are enough (46.875%), else to one decimal (53.3%)."""
    value = 100 * fraction
    exact = f"{value:.3f}"
    if abs(value - float(exact)) < 1e-9:
        return exact.rstrip("0").rstrip(".") + "%"
    return f"{value:.1f}%"


def with_error(value: Any, stderr: float | None, form: str) -> str:
    """`value ± stderr` in a format such as ".2f" or "+.2f"; only the value where no standard error is known."""
    if stderr is None:
        return f"{value:{form}}"
    return f"{value:{form}}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{stderr:{form.lstrip('+')}}"


IN_NOISE = "≈"  # before a number that is within its error of what it is compared with


def with_interval(value: float, low: float, high: float, form: str) -> str:
    """`value [low, high]`, the ends of the interval as whole numbers."""
    return f"{value:{form}}\N{NO-BREAK SPACE}[{low:.0f},\N{NO-BREAK SPACE}{high:.0f}]"


def variant_label(spec: Mapping[str, Any] | None) -> str:
    """A variant in the words of the paper's Table 1, with the exact reduction of the model at hand."""
    if spec is None:
        return "Baseline"
    label = f"{percent(spec['prefill_reduction'])} SingleInputKV"
    if spec["key_value_group_size"] > 1:
        label += f" + {spec['key_value_group_size']}× AcrossKV"
    return (
        label
        + heads_label(spec)
        + (", early exit" if spec.get("early_exit") else "")
        + (", for prompts alone" if spec.get("own_key_values") else "")
    )


def heads_label(spec: Mapping[str, Any] | None) -> str:
    """The KV heads of the rewired layers, to go after a comma; nothing where they are the teacher's."""
    heads = (spec or {}).get("num_key_value_heads")
    return f", {heads} KV head{'s' if heads > 1 else ''}" if heads else ""


def heading(entry: Mapping[str, Any]) -> str:
    """The title of an artifact: the models that ran, what it shows, and the published item it regenerates."""
    models, title = enumeration([model["title"] for model in entry["models"]]), entry["title"]
    return f"{f'{models}: {title}' if entry['models'] else title[0].upper() + title[1:]} ({entry['label']})"


def enumeration(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else "none"


def some(items: Sequence[str], most: int = 3) -> str:
    """The first of many: `a, b, c and 7 more`."""
    return enumeration(items if len(items) <= most + 1 else [*items[:most], f"{len(items) - most} more"])
