"""Average scores, one column a model: Table 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.columns import Column, table
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING
from swiftkv.artifacts.scored import (
    Row,
    average_cells,
    average_note,
    averaged_tasks,
    decimals,
    percent_published,
    published_average,
    rows,
    subsets_note,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, percent
from swiftkv.errors import UserError
from swiftkv.section import Names, Section, Text


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Scores of every case."""
    _check(entry)
    return {"scores": paths.scores(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """The averages of each model's cases; a model that stands for several parts has one column."""
    _check(entry)
    columns = _columns(rows(entry, files))
    tasks, footnotes, notes = list(entry["tasks"]), Footnotes(), []
    same: dict[tuple[str, ...], list[str]] = {}  # columns by the tasks they average over
    printed, lines = [{"Variant": shown["title"]} for shown in entry["rows"]], []
    for title, (parts, cases) in columns.items():
        averaged = averaged_tasks(list(cases.values()), tasks)
        digits = decimals(list(cases.values()), tasks)
        mean = Column(title, "average", f".{digits}f", why="_average")
        published = any(row.published for row in cases.values())
        for shown, cells in zip(entry["rows"], printed, strict=True):
            row = next((cases[key] for key in _keys(shown) if key in cases), None)
            cells[title] = ""
            if row is not None:
                lines.append(_line(shown["title"], row, tasks, averaged))
                cells[title] = mean.cell(lines[-1], footnotes)
            if published:
                cells[f"{title},\npublished"] = _published(row, tasks, averaged, footnotes)
        if averaged:
            same.setdefault(tuple(averaged), []).append(title)
        if len(parts) > 1:
            notes.append(f"{title} stands for {enumeration(parts)}.")
    for averaged, titles in same.items():
        of = f" of {enumeration(titles)}" if len(same) > 1 else ""
        notes += filter(None, [average_note(averaged, entry["tasks"], of)])
    found = [row for _, cases in columns.values() for row in cases.values()]
    notes = [*entry.get("notes", []), subsets_note(found, entry["tasks"]), *notes, *_reductions(found)]
    if sources := sorted({row.published["source"] for row in found if row.published}):
        notes.append(f"published: {enumeration(sources)}.")
    panel = Panel(pd.DataFrame(printed), "Average score: mean ± standard error, in percent")
    return table(entry, lines, [panel], notes, footnotes)


def _keys(line: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The cases a line of the table may show."""
    named = [item.partition("/") for item in line["variants"]]
    return [(variant, kv_cache or "auto") for variant, _, kv_cache in named]


def _check(entry: Entry) -> None:
    """Refuse an entry of which a case would not be shown.

    Raises:
        UserError: a case has no row, or two cases of one model share a cell.
    """
    cells: dict[tuple[str, str], set[str]] = {}
    for part in entry["parts"]:
        for variant, kv_cache in part["cases"]:
            lines = [line["title"] for line in entry["rows"] if (variant, kv_cache) in _keys(line)]
            if len(lines) != 1:
                raise UserError(
                    f"artifacts.{entry['name']}: {variant} of part {part['title']!r} is in {len(lines)} rows, not in one"
                )
            for model in part["models"]:
                cells.setdefault((model, lines[0]), set()).add(variant)
    for (model, line), variants in cells.items():
        if len(variants) > 1:
            raise UserError(
                f"artifacts.{entry['name']}: row {line!r} has one place for {model}, but {enumeration(sorted(variants))}"
            )


def _columns(found: Sequence[Row]) -> dict[str, tuple[list[str], dict[tuple[str, str], Row]]]:
    """Parts and cases by printed column: the model's title, or the part's where no model plays it."""
    columns: dict[str, tuple[list[str], dict[tuple[str, str], Row]]] = {}
    for row in found:
        parts, cases = columns.setdefault(row.model["title"] if row.known else row.part, ([], {}))
        if row.part not in parts:
            parts.append(row.part)
        cases.setdefault((row.variant, row.kv_cache), row)
    return columns


def _published(row: Row | None, tasks: Sequence[str], averaged: Sequence[str], footnotes: Footnotes) -> str:
    if row is None or not row.published:
        return "" if row is None else MISSING
    mean, printed = published_average(row, tasks, averaged)
    notes = [row.published["note"]] if row.published.get("note") else []
    if mean is not None and not printed:
        notes.insert(0, "computed from the published scores of the averaged tasks")
    elif mean is None and (mean := row.published.get("average")) is not None:
        notes.insert(0, "over all tasks, so not comparable with ours")
    text = percent_published(mean, row.published, tasks)
    return text + (f" {footnotes.mark('; '.join(notes))}" if notes else "")


def _line(title: str, row: Row, tasks: Sequence[str], averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: one case of one model."""
    cells = average_cells(row, averaged)
    return {
        "model": row.model["name"],
        "title": row.model["title"],
        "part": row.part,
        "row": title,
        "variant": row.variant,
        "kv_cache": row.kv_cache,
        "prefill_reduction_percent": 100 * row.prefill_reduction if row.known else None,
        **cells,
        "average_published": published_average(row, tasks, averaged)[0],
        "missing": cells["_average"],
    }


def _reductions(found: Sequence[Row]) -> list[str]:
    """The exact reductions behind the nominal names of the rows."""
    exact: dict[str, list[str]] = {}
    for row in found:
        if row.known and row.spec:
            saved = f" and {percent(row.cache_reduction)} of the cache" if row.cache_reduction else ""
            exact.setdefault(row.model["title"], []).append(
                f"{row.variant} {percent(row.spec['prefill_reduction'])}{saved}"
            )
    return [f"Exact reductions of {title}: {', '.join(variants)}." for title, variants in exact.items()]


class _TableRow(Section, called="a row"):
    """One row: the first of these variants that a model has."""

    title: Text = Field(description="How the row is headed.")
    variants: Names = Field(description="In the order in which they are looked for.")


KIND = Kind(
    "table",
    ("parts", "tasks"),
    needs,
    make,
    own={
        "rows": Annotated[list[_TableRow], Field(min_length=1)],
    },
)
