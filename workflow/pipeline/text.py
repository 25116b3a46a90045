"""Format numbers and lists as text."""

from collections.abc import Iterable, Sequence
from typing import Any


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
