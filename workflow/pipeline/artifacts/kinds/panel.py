"""Scores beside their paired differences to the baseline: tasks that tell the variants of a small model apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from pipeline.artifacts import paired
from pipeline.artifacts.columns import PUBLISHED, Column, Line, grid, origin, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import MISSING, Published, read_published
from pipeline.artifacts.scored import Row, Scored, Tasks, closeness_columns, in_bits, rows
from pipeline.artifacts.table import Footnotes, Panel, Table
from pipeline.artifacts.text import enumeration
from pipeline.statistics import ERRORS, Difference
from swiftkv.errors import UserError
from swiftkv.section import Names, Text, Unique


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """The orders with this scale's stand-ins, doubles dropped; refuses variants that the entry does not show."""
    shown = {variant for variant, _ in entry["cases"]}
    orders = [
        list(dict.fromkeys(config.stand_ins.get(name, name) for name in order)) for order in entry.get("orders", [])
    ]
    if unknown := [name for order in orders for name in order if name not in shown]:
        raise UserError(f"artifacts.{entry['name']}: orders name {unknown[0]!r}, which is not among its variants")
    return {"orders": [order for order in orders if len(order) > 1]}


def make(entry: Entry, files: Files) -> Table:
    """Closeness to the teacher; bits per byte, accuracies, and both along the orders; published scores."""
    scored, footnotes = Scored(rows(entry, files), entry["tasks"]), Footnotes()
    cases, tasks = scored.rows, scored.tasks
    baseline = next((row for row in cases if row.spec is None and row.kv_cache == "auto"), None)
    averaged = _above_chance(scored, baseline)
    lines = [_line(row, tasks, averaged) for row in cases]
    for row, line in zip(cases, lines, strict=True):
        if baseline not in (None, row):
            line |= paired.compare(row, baseline, tasks, averaged) | {"_below": ("difference", None)}
    by_variant = {row.variant: row for row in cases if row.kv_cache == "auto"}
    steps = [
        {"row": "step", **by_variant[first].head, "against": second}
        | paired.compare(by_variant[first], by_variant[second], tasks, averaged)
        for order in entry["orders"]
        for first, second in _steps(order)
    ]
    columns, variant, panels = scored.columns(), Column("Variant", "variant"), []
    accuracies = [column for column in columns if not in_bits(tasks[column.value])]
    kinds = {
        "Bits per byte of right answers": [column for column in columns if column not in accuracies],
        "Accuracies": [*accuracies, Column("Avg.", "average", f".{scored.digits}f")] if accuracies else [],
    }
    shown = {kind: of_kind for kind, of_kind in kinds.items() if of_kind}

    def add(
        caption: str, these: Sequence[Line], *columns: Column, block: Callable[[Line], Any] = lambda line: None
    ) -> None:
        panels.append(grid(these, columns, footnotes, f"({'abcdefg'[len(panels)]}) {caption}", block))

    def with_differences(scores: Sequence[Column]) -> Iterator[Column]:
        for column, apart in zip(scores, paired.columns(scores), strict=True):
            yield replace(column, below=partial(_below, f"{column.value}_difference", apart, footnotes))

    both = ", and below each the difference to the baseline on the same questions"
    if any(row.closeness for row in cases):
        # The baseline is the teacher, so there is nothing to subtract.
        close = [line | {"_below": None} for line in lines]
        add("Closeness to the teacher on held-out chats", close, variant, *closeness_columns())
    for kind, of_kind in shown.items():
        add(kind + both, lines, variant, *with_differences(of_kind), block=id)
    better = [_better(line, tasks) for line in steps]
    for kind, of_kind in shown.items() if steps else ():
        against = Column("against", "against")
        add(f"{kind}: how much better the first is than the second", better, variant, against, *paired.columns(of_kind))
    published, cards = _published(entry, files, baseline), []
    for card in published:
        (here,) = (
            column.cell(baseline.score(card["task"], tasks[card["task"]]), footnotes)
            for column in columns
            if column.value == card["task"]
        )
        cards.append(_card(card, baseline.scores[card["task"]].result, tasks[card["task"]]["title"], here))
    if cards:
        caption = f"({'abcdefg'[len(panels)]}) The baseline beside its published scores"
        origins = [{"Here": origin(baseline.head, card["task"]), "Published": PUBLISHED} for card in published]
        panels.append(Panel(pd.DataFrame(cards), caption, origins=tuple(origins)))
    over = f"Avg.: mean over {enumeration([tasks[task]['title'] for task in averaged])}."
    notes = [*entry.get("notes", []), *([over] if averaged else [])]
    return table(entry, [*lines, *steps], panels, notes, footnotes)


def _below(name: str, apart: Column, footnotes: Footnotes, line: Line) -> str:
    return apart.cell(line, footnotes) if name in line else ""


def _steps(order: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbors of an order, and its two ends."""
    ends = [(order[0], order[-1])] if len(order) > 2 else []
    return [*pairwise(order), *ends]


def _line(row: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores and their errors in percent, or bits per byte."""
    line = {"row": "measured", **row.head, "against": None}
    for task, settings in tasks.items():
        line |= row.score(task, settings)
    return line | {**row.average(averaged), **row.close(), "missing": row.missing()}


def _better(line: Line, tasks: Tasks) -> Line:
    """A line with the differences in bits per byte turned around, so that positive is better."""
    turned = {f"{task}_difference" for task, asked in tasks.items() if in_bits(asked)}
    return {key: 0.0 - cell if key in turned and cell is not None else cell for key, cell in line.items()}


def _published(entry: Entry, files: Files, baseline: Row | None) -> list[Published]:
    """What others published of the model, on the tasks that were scored here."""
    return [
        card
        for card in read_published(files.get("cards", ()))
        if baseline is not None
        and card["model"] == baseline.model["published"]
        and card["task"] in entry["tasks"]
        and baseline.scores[card["task"]].ok
    ]


def _card(card: Published, result: Mapping[str, Any], title: str, here: str) -> dict[str, str]:
    error = result["stderr"]
    apart = None if not error else (100 * result["value"] - card["value"]) / (100 * error)
    asked = [card["tool"], f"{card['shots']:g}-shot", *([card["metric"]] if card["metric"] else [])]
    return {
        "Task": title,
        "Here": here,
        "Published": f"{card['value']:g}",
        "Apart,\nstandard errors": MISSING if apart is None else f"{apart:+.1f}",
        "Within errors": MISSING if apart is None else "yes" if abs(apart) <= ERRORS else "no",
        "Published with": ", ".join(asked),
        "Settings": f"differ: {card['differs']}" if card["differs"] else "agree",
        "Source": card["source"],
    }


def _above_chance(scored: Scored, baseline: Row | None) -> list[str]:
    """Tasks that every row has an accuracy in and the baseline is clearly better than guessing: what is averaged."""

    def clear(task: str) -> bool:
        score, chance = baseline.scores[task].result, scored.tasks[task].get("chance", 0.0)
        return bool(score) and Difference(score["value"] - chance, score["stderr"]).clear

    return [task for task in scored.averaged if baseline is not None and clear(task)]


KIND = ArtifactKind(
    "table",
    ("models", "variants", "tasks"),
    ("scores", "fidelity"),
    make,
    own={
        "orders": list[Annotated[Names, Field(min_length=2)]],
        "cards": Annotated[list[Text], Unique],
    },
    optional=("orders", "cards"),
    exactly={"models": 1},
    extra=extra,
)
