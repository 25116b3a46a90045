"""Printing lines of a CSV: a column names the cell, how its value is written, and where the reason of a gap stands.

A line is a dict, one row of the CSV, in its order. Keys that start with "_" are for printing only. Some have a meaning:
`status` "oom" makes OOM of a gap; `part` is the title above its lines; `_below` is a second printed line under the first,
a label and a remark on it or None; `_origins` says by header what numbers were measured by, where that is not `origin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pipeline.artifacts.kind import Entry
from pipeline.artifacts.records import MISSING, OOM
from pipeline.artifacts.table import Footnotes, Panel, Table
from pipeline.artifacts.text import IN_NOISE, heading, with_error, with_interval
from pipeline.statistics import Difference

Line = Mapping[str, Any]

PUBLISHED = "published"  # the origin of a number that others published
AND = ";"  # between origins
_NUMBER = re.compile(rf"[{IN_NOISE}\s]*[-+−]?\d")
_NAMES = ("Model", "Variant", "against")  # headers of what may begin with a digit, too


@dataclass(frozen=True)
class Column:
    """A printed column.

    Attributes:
        header: may hold line breaks.
        value: the cell's key, or a function of the line; None is printed as n/a.
        text: a format such as ".2f", in which the interval KEY_low to KEY_high or the error KEY_stderr follows where the line
            has one, and which `IN_NOISE` precedes where _KEY_in_noise says so; or a function.
        why: key of the reason for a gap, which becomes a footnote.
        below: the cell of the second line, where there is one.
        within: key of the line in this line that the cell is of; None is this line itself.
    """

    header: str
    value: str | Callable[[Line], Any]
    text: str | Callable[[Any], str] = ""
    why: str | None = None
    below: Callable[[Line], str] = lambda line: ""
    within: Any = None

    def cell(self, line: Line, footnotes: Footnotes) -> str:
        """What is printed of a line."""
        line = line if self.within is None else line[self.within]
        value = self.value(line) if callable(self.value) else line[self.value]
        if value is None:
            oom = self.why is not None and line.get("status") == "oom"
            mark = f" {footnotes.mark(line[self.why])}" if self.why else ""
            return (OOM if oom else MISSING) + mark
        if callable(self.text):
            return self.text(value)
        low, high, stderr = (line.get(f"{self.value}_{name}") for name in ("low", "high", "stderr"))
        text = with_error(value, stderr, self.text) if low is None else with_interval(value, low, high, self.text)
        return f"{IN_NOISE} {text}" if line.get(f"_{self.value}_in_noise") else text


def measured(name: str, result: Mapping[str, Any] | Difference | None, scale: float = 1.0) -> dict[str, float | None]:
    """The cells NAME and NAME_stderr of a result's `value` and `stderr`; None where there is none."""
    numbers = result if isinstance(result, tuple) else ((result or {}).get(key) for key in ("value", "stderr"))
    cells = zip((name, f"{name}_stderr"), numbers, strict=True)
    return {key: None if number is None else scale * number for key, number in cells}


def origin(line: Line, what: str = "") -> str:
    """What a number was measured by: model/variant/KV-cache format/point, or the column where the line is of no point.

    A part is empty where the line does not say. A difference has two origins, with `AND` between.
    """
    if line.get("row") == PUBLISHED or what.endswith(PUBLISHED):
        return PUBLISHED
    case = {key: line.get(key) for key in ("model", "variant", "kv_cache")}
    against = {"variant": line.get("against")} | {key: line.get(f"against_{key}") for key in case}
    second = [case | {key: name for key, name in against.items() if name}] if any(against.values()) else []
    whose = [[*one.values(), line.get("point") or what] for one in (case, *second)]
    return AND.join("/".join(name or "" for name in parts) for parts in whose)


def models(lines: Iterable[Line]) -> list[Column]:
    """A column with the model's title, where the lines are of several."""
    return [Column("Model", "title")] if len({line["model"] for line in lines}) > 1 else []


def across(column: Column, headers: Mapping[Any, str]) -> list[Column]:
    """The column once for each key in `headers`, under that header, of the line that stands there."""
    return [replace(column, header=header, within=key) for key, header in headers.items()]


def grid(
    lines: Sequence[Line],
    columns: Sequence[Column],
    footnotes: Footnotes,
    caption: str | None = None,
    block: Callable[[Line], Any] = lambda line: line.get("model"),
) -> Panel:
    """The printed lines, with a rule where `block` changes and a heading above every part."""
    printed, rules, headings, below, origins = [], [], {}, [], []

    def add(cells: dict[str, str], whose: Callable[[Column], str]) -> None:
        printed.append(cells)
        shown = [column for column in columns if column.header not in _NAMES and _NUMBER.match(cells[column.header])]
        origins.append({column.header: whose(column) for column in shown})

    for before, line in zip([None, *lines], lines, strict=False):
        if line.get("part") is not None and (before is None or before["part"] != line["part"]):
            headings[len(printed)] = line["part"]
        elif before is not None and block(before) != block(line):
            rules.append(len(printed))

        def origin_of(column: Column, line: Line = line) -> str:
            what = column.value if isinstance(column.value, str) else ""
            return origin(line if column.within is None else line[column.within], what)

        add({column.header: column.cell(line, footnotes) for column in columns}, origin_of)
        if "_origins" in line:
            origins[-1] = line["_origins"]
        if line.get("_below"):
            label, remark = line["_below"]
            first = label + (f" {footnotes.mark(remark)}" if remark else "")
            second = {
                each.header: each.below(line if each.within is None else line[each.within]) for each in columns[1:]
            }
            below.append(len(printed))
            add({columns[0].header: first} | second, (lambda column: PUBLISHED) if label == PUBLISHED else origin_of)
    return Panel(pd.DataFrame(printed), caption, tuple(rules), headings, tuple(below), tuple(origins))


def table(
    entry: Entry,
    lines: Iterable[Line],
    panels: Sequence[Panel],
    notes: Iterable[str],
    footnotes: Footnotes,
    title: str | None = None,
) -> Table:
    """An artifact of its lines and what is printed of them; the title is `heading`'s where none is given."""
    values = [{key: value for key, value in line.items() if not key.startswith("_")} for line in lines]
    return Table(entry["name"], title or heading(entry), pd.DataFrame(values), panels, [*notes, *footnotes.lines()])
