"""What a table of checks says, in a line a failed one; `python -m pipeline.artifacts.checked TABLE.csv` prints it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError, command_line

PASSED, FAILED = "passed", "FAILED"


def verdict(value: float | None, low: float | None, high: float | None) -> str:
    """Whether a measured value lies within bounds, ends included; None is an open bound, or a value that is missing."""
    inside = value is not None and (low is None or value >= low) and (high is None or value <= high)
    return PASSED if inside else FAILED


def bounds(low: float | None, high: float | None) -> str:
    """Bounds in words, one of which may be open."""
    if low is None or high is None:
        return f"at most {high:g}" if low is None else f"at least {low:g}"
    return f"{low:g} to {high:g}"


def count(lines: Sequence[Mapping[str, Any]]) -> str:
    """How many of a table's checks passed."""
    return f"{sum(line['verdict'] == PASSED for line in lines)} of {len(lines)} checks passed"


@command_line
def main(words: Sequence[str]) -> None:
    """Print the failed checks, how many passed, and where to look; exit status 1 where one failed.

    Raises:
        UserError: the table has not been made.
    """
    place = Path(*words)
    if not place.is_file():
        raise UserError(f"{place} has not been made; the lines above say which step failed")
    with place.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        if line["verdict"] != PASSED:
            low, high = (float(line[name]) if line[name] else None for name in ("low", "high"))
            print(f"{FAILED}  {line['what']}: {line['value'] or 'no value'}, expected {bounds(low, high)}")
    print(f"{count(lines)}. What was checked, and the values: {place.with_suffix('.md')}")
    if any(line["verdict"] != PASSED for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
