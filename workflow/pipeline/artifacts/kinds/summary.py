"""Average scores, one column a model: Table 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from pipeline.artifacts.columns import PUBLISHED, Column, origin, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import MISSING
from pipeline.artifacts.scored import Row, Scored, rows
from pipeline.artifacts.table import Footnotes, Panel, Table
from pipeline.artifacts.text import enumeration
from swiftkv.errors import UserError
from swiftkv.section import Names, Section, Text


def make(entry: Entry, files: Files) -> Table:
    """The averages of each model's cases; a model that stands for several parts has one column."""
    columns, footnotes, notes = _columns(rows(entry, files)), Footnotes(), list(entry.get("notes", []))
    same: dict[tuple[str, ...], dict[str, Scored]] = {}  # columns by the tasks they average over
    printed, lines = [{"Variant": shown["title"]} for shown in entry["rows"]], []
    origins: list[dict[str, str]] = [{} for _ in printed]
    for title, cases in columns.items():
        scored = Scored(list(cases.values()), entry["tasks"])
        mean = Column(title, "average", f".{scored.digits}f", why="_average")
        published = any(row.published for row in cases.values())
        for shown, cells, whose in zip(entry["rows"], printed, origins, strict=True):
            row = next((cases[key] for key in _keys(shown) if key in cases), None)
            cells[title] = ""
            if row is not None:
                lines.append(_line(shown["title"], row, scored))
                cells[title], whose[title] = mean.cell(lines[-1], footnotes), origin(lines[-1])
            if published:
                cells[f"{title},\npublished"] = _published(row, scored.averaged, footnotes)
                whose[f"{title},\npublished"] = PUBLISHED
        same.setdefault(tuple(scored.averaged), {})[title] = scored
    same.pop((), None)
    for alike in same.values():
        of = f" of {enumeration(list(alike))}" if len(same) > 1 else ""
        notes += next(iter(alike.values())).average_note(of)
    caption = "Average score: mean ± standard error, in percent"
    panel = Panel(pd.DataFrame(printed), caption, origins=tuple(origins))
    return table(entry, lines, [panel], notes, footnotes)


def _keys(line: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The cases a line of the table may show."""
    named = [item.partition("/") for item in line["variants"]]
    return [(variant, kv_cache or "auto") for variant, _, kv_cache in named]


def _check(config: Config, entry: Entry) -> None:
    """Refuse an entry of which a case would not be shown."""
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


def _columns(found: Sequence[Row]) -> dict[str, dict[tuple[str, str], Row]]:
    """Cases by printed column: the model's title, or the part's where no model plays it."""
    columns: dict[str, dict[tuple[str, str], Row]] = {}
    for row in found:
        cases = columns.setdefault(row.model["title"] if row.known else row.part, {})
        cases.setdefault((row.variant, row.kv_cache), row)
    return columns


def _published(row: Row | None, averaged: Sequence[str], footnotes: Footnotes) -> str:
    if row is None or not row.published:
        return "" if row is None else MISSING
    mean, printed = row.published_average(averaged)
    notes = [row.published["note"]] if row.published.get("note") else []
    if mean is not None and not printed:
        notes.insert(0, "computed from the published scores of the averaged tasks")
    elif mean is None and (mean := row.published.get("average")) is not None:
        notes.insert(0, "over all tasks, so not comparable with ours")
    text = row.in_print(mean)
    return text + (f" {footnotes.mark('; '.join(notes))}" if notes else "")


def _line(title: str, row: Row, scored: Scored) -> dict[str, Any]:
    """A line of the CSV: one case of one model."""
    cells = scored.average(row)
    return {
        "model": row.model["name"],
        "title": row.model["title"],
        "part": row.part,
        "row": title,
        "variant": row.variant,
        "kv_cache": row.kv_cache,
        "prefill_reduction_percent": 100 * row.prefill_reduction if row.known else None,
        **cells,
        "average_published": row.published_average(scored.averaged)[0],
        "missing": cells["_average"],
    }


class _TableRow(Section):
    """One row: the first of these variants that a model has."""

    title: Text = Field(description="How the row is headed.")
    variants: Names = Field(description="In the order in which they are looked for.")


KIND = ArtifactKind(
    "table",
    ("parts", "tasks"),
    ("scores",),
    make,
    own={
        "rows": Annotated[list[_TableRow], Field(min_length=1)],
    },
    extra=_check,
)
