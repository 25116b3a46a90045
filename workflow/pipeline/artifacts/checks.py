"""Checks of other artifacts' numbers; `python -m pipeline.artifacts.checks TABLE.csv` prints the failed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import MISSING, enumeration, show
from pipeline.artifacts.published import number, read_csv
from pipeline.artifacts.writers import Grid, Table
from swiftkv.errors import UserError, command_line

PASSED, FAILED = "passed", "FAILED"


def make(entry: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Table:
    """Return a row a check: its name, value and bounds, and whether the value lies within them."""
    tables = {file.stem: read_csv(file) for file in files["tables"]}
    lines = [_check(check, tables[check["artifact"]], entry["name"]) for check in entry["checks"]]
    printed = pd.DataFrame({
        "What": line["what"],
        "Artifact": line["artifact"],
        "Value": MISSING if line["value"] is None else show(line["value"], "s4"),
        "Expected": line["bounds"],
        "": line["verdict"],
    } for line in lines)  # fmt: skip
    return Table(entry["name"], heading(entry), pd.DataFrame(lines), [Grid(printed)], entry.get("notes", []))


def _check(check: Mapping[str, Any], rows: Sequence[Mapping[str, str]], name: str) -> dict[str, Any]:
    """A line of the CSV; raises a `UserError` where not exactly one row is as the check says."""

    def is_meant(row: Mapping[str, str]) -> bool:
        cells = ((row.get(column), value) for column, value in check["where"].items())
        return all(cell == value or (not isinstance(value, str) and number(cell) == value) for cell, value in cells)

    found = [row for row in rows if is_meant(row)]
    where = enumeration([f"{column} {value}" for column, value in check["where"].items() if value != ""])
    if len(found) != 1:
        raise UserError(
            f"artifacts.{name}: {check['artifact']}.csv has {len(found) or 'no'} rows with {where}; correct the check "
            f"{check['what']!r}"
        )
    value, expected, low, high = number(found[0]["value"]), *(check.get(key) for key in ("expected", "least", "most"))
    if expected is not None:
        low, high = expected - check["tolerance"], expected + check["tolerance"]
        words = f"{expected:g} within {check['tolerance']:.2g}"
    else:
        words = f"at most {high:g}" if low is None else f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
    inside = value is not None and (low is None or value >= low) and (high is None or value <= high)
    line = {"what": check["what"], "artifact": check["artifact"], "where": where, "value": value, "expected": expected}
    return line | {"low": low, "high": high, "bounds": words, "verdict": PASSED if inside else FAILED}


@command_line
def main(words: Sequence[str]) -> None:
    """Print the failed checks of a CSV of `checks`, how many passed, and where to look; exit status 1 where one failed.

    Raises:
        UserError: the table has not been made.
    """
    place = Path(*words)
    if not place.is_file():
        raise UserError(f"{place} has not been made; the lines above say which step failed")
    lines = read_csv(place)
    failed = [line for line in lines if line["verdict"] != PASSED]
    for line in failed:
        print(f"{FAILED}  {line['what']}: {line['value'] or 'no value'}, expected {line['bounds']}")
    passed = f"{len(lines) - len(failed)} of {len(lines)} checks passed"
    print(f"{passed}. What was checked, and the values: {place.with_suffix('.md')}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
