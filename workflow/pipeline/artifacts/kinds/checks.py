"""Cells of other artifacts beside the values that are expected of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pipeline.artifacts.checked import bounds, verdict
from pipeline.artifacts.columns import Column, Line, grid, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files, Listed
from pipeline.artifacts.records import read_published
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import digits, enumeration
from swiftkv.errors import UserError
from swiftkv.section import Section, Text, key, undefined


class Check(Section):
    """One cell of an artifact's CSV and what is expected of it: a value within a tolerance, or a least or a largest one."""

    what: Text = key("What the cell is, in words.")
    artifact: Text = key("The artifact whose CSV has it.")
    column: Text = key("Its column.")
    where: dict[str, str | float] = key("Columns and their values, which only its row has.", min_length=1)
    expected: float | None = key("Its value in an earlier run.", None)
    tolerance: Annotated[float, Field(ge=0)] | None = key("How far from that it may be.", None)
    least: float | None = key("The least it may be.", None)
    most: float | None = key("The most it may be.", None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.expected is None) != (self.tolerance is None):
            raise ValueError("expected and tolerance go together")
        if (self.expected is None) == (self.least is None and self.most is None):
            raise ValueError("needs either expected and tolerance, or least, most or both")
        return self


def _of_page(config: Config, entry: Entry, page: Mapping[str, Listed]) -> dict[str, Any]:
    """The artifacts whose CSVs are checked, with their forms."""
    place = f"config, at artifacts.{entry['name']}.checks"
    for check in entry["checks"]:
        name = check["artifact"]
        if name not in page or name == entry["name"]:
            raise UserError(
                f"{place}: {undefined(name, 'artifacts', [other for other in page if other != entry['name']])}"
            )
        if reason := page[name].left_out:
            raise UserError(f"{place}: {name} is not made at this scale: {reason}")
    return {"judged_on": {check["artifact"]: page[check["artifact"]].form for check in entry["checks"]}}


def make(entry: Entry, files: Files) -> Table:
    """One line a check: what it is of, its value, the bounds, and whether it lies within them."""
    tables = {file.stem: read_published([file]) for file in files["tables"]}
    lines = [_line(check, tables[check["artifact"]], entry["name"]) for check in entry["checks"]]
    columns = [
        Column("What", "what"),
        Column("Artifact", "artifact"),
        Column("Value", "value", digits(4)),
        Column("Expected", _expected),
        Column("", "verdict"),
    ]
    footnotes = Footnotes()
    return table(
        entry, lines, [grid(lines, columns, footnotes, block=lambda line: None)], entry.get("notes", []), footnotes
    )


def _line(check: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """A line of the CSV.

    Raises:
        UserError: not exactly one row is as the check says, or it has no number in such a column.
    """
    found = [row for row in rows if all(row.get(column) == value for column, value in check["where"].items())]
    where = enumeration([f"{column} {value}" for column, value in check["where"].items()])
    if len(found) != 1 or check["column"] not in found[0]:
        problem = f"no column {check['column']!r}" if found else f"no row with {where}"
        problem = problem if len(found) < 2 else f"{len(found)} rows with {where}"
        raise UserError(f"artifacts.{name}: {check['artifact']}.csv has {problem}; correct the check {check['what']!r}")
    value, expected = found[0][check["column"]], check.get("expected")
    if isinstance(value, str):
        raise UserError(
            f"artifacts.{name}: {check['column']} of {check['artifact']}.csv is {value!r}, which is no number"
        )
    value = None if value is not None and math.isnan(value) else value
    low, high = check.get("least"), check.get("most")
    if expected is not None:
        low, high = expected - check["tolerance"], expected + check["tolerance"]
    line = {key: check[key] for key in ("what", "artifact", "column")} | {"where": where, "value": value}
    return line | {"expected": expected, "low": low, "high": high, "verdict": verdict(value, low, high)}


def _expected(line: Line) -> str:
    if line["expected"] is None:
        return bounds(line["low"], line["high"])
    return f"{line['expected']:g} \N{PLUS-MINUS SIGN} {line['high'] - line['expected']:.2g}"


KIND = ArtifactKind(
    "table",
    (),
    ("tables",),
    make,
    own={"checks": Annotated[list[Check], Field(min_length=1)]},
    of_page=_of_page,
)
