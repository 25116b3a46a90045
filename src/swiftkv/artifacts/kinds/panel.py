"""Scores beside their paired differences to the baseline: tasks that tell the variants of a small model apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from swiftkv.artifacts.columns import Column, Line, grid, measured, table
from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files
from swiftkv.artifacts.records import MISSING, Published, Record, read_published
from swiftkv.artifacts.scored import Row, Scored, Tasks, in_bits, rows, unit
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration
from swiftkv.artifacts.trained import training_notes
from swiftkv.errors import UserError
from swiftkv.section import Names, Text, Unique
from swiftkv.statistics import ERRORS, Difference, mean_of, paired_difference


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """The orders with this scale's stand-ins, doubles dropped; refuses variants that the entry does not show."""
    shown = {variant for variant, _ in entry["cases"]}
    orders = [
        list(dict.fromkeys(config["stand_ins"].get(name, name) for name in order)) for order in entry.get("orders", [])
    ]
    if unknown := [name for order in orders for name in order if name not in shown]:
        raise UserError(f"artifacts.{entry['name']}: orders name {unknown[0]!r}, which is not among its variants")
    return {"orders": [order for order in orders if len(order) > 1]}


def make(entry: Entry, files: Files) -> Table:
    """Panels: (a) scores and differences to the baseline, (b) differences along the orders, (c) published scores."""
    scored, footnotes = Scored(rows(entry, files), entry["tasks"]), Footnotes()
    cases, tasks = scored.rows, scored.tasks
    baseline = next((row for row in cases if row.spec is None and row.kv_cache == "auto"), None)
    averaged = _above_chance(scored, baseline)
    columns = [*scored.columns(), Column("Avg.", "average", f".{scored.digits}f")]
    differences = [Column(column.header, f"{column.value}_difference", f"+{column.text}") for column in columns]
    scores = [
        replace(column, below=partial(apart.cell, footnotes=footnotes))
        for column, apart in zip(columns, differences, strict=True)
    ]
    lines = [_line(row, tasks, averaged) for row in cases]
    for row, line in zip(cases, lines, strict=True):
        if baseline not in (None, row):
            line |= _differences(row, baseline, tasks, averaged) | {"_below": ("difference", None)}
    caption = "(a) Scores, and below each the difference to the baseline"
    panels = [grid(lines, [Column("Variant", "variant"), *scores], footnotes, caption, id)]
    by_variant = {row.variant: row for row in cases if row.kv_cache == "auto"}
    steps = [
        {"row": "step", **by_variant[first].head, "against": second}
        | _differences(by_variant[first], by_variant[second], tasks, averaged)
        for order in entry["orders"]
        for first, second in _steps(order)
    ]
    if steps:
        head = [Column("Variant", "variant"), Column("against", "against")]
        caption = "(b) How much better the first is than the second"
        panels.append(grid([_better(line, tasks) for line in steps], [*head, *differences], footnotes, caption))
    published = _published(entry, files, baseline)
    cards = []
    for card in published:
        (here,) = (
            column.cell(baseline.score(card["task"], tasks[card["task"]]), footnotes)
            for column in columns
            if column.value == card["task"]
        )
        cards.append(_card(card, baseline.scores[card["task"]].result, tasks[card["task"]]["title"], here))
    if cards:
        caption = f"({'c' if steps else 'b'}) The baseline beside its published scores"
        panels.append(Panel(pd.DataFrame(cards), caption))
    notes = [
        *entry.get("notes", []),
        *_notes(scored, averaged),
        *(_order_note(by_variant[order[0]], by_variant[order[-1]], tasks) for order in entry["orders"]),
        *([_cards_note(cards)] if cards else []),
        *dict.fromkeys(card["note"] for card in published if card["note"]),
        *training_notes(entry, files),
    ]
    return table(entry, [*lines, *steps], panels, notes, footnotes)


def _steps(order: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbours of an order, and its two ends."""
    ends = [(order[0], order[-1])] if len(order) > 2 else []
    return [*pairwise(order), *ends]


def _line(row: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores and their errors in percent, or bits per byte."""
    line = {"row": "measured", **row.head, "against": None}
    for task, settings in tasks.items():
        line |= row.score(task, settings)
    return line | {**row.average(averaged), "missing": row.missing()}


def _differences(first: Row, second: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """Further cells of a line: first minus second, in the unit of the score."""
    cells = {}
    for task, asked in tasks.items():
        cells |= measured(f"{task}_difference", _row_difference(task, first, second), unit(asked))
    return cells | measured("average_difference", _average_difference(averaged, first, second), 100)


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


def _notes(scored: Scored, averaged: Sequence[str]) -> list[str]:
    bits = [settings["title"] for settings in scored.tasks.values() if in_bits(settings)]
    notes = [
        "Accuracies are in percent; a difference is the mean over questions that both were asked, with the standard error "
        "of that mean, so it is known better than either score.",
    ]
    if bits:
        notes.append(
            f"{enumeration(bits)}: bits the model needs for a byte of the right answer, of which fewer are better."
        )
    over = enumeration([scored.tasks[task]["title"] for task in averaged])
    notes.append(
        f"Avg. is the mean over {over}, in which the baseline is above chance by more than {ERRORS} standard errors."
        if averaged
        else f"There is no average: in no accuracy is the baseline above chance by more than {ERRORS} standard errors."
    )
    return [*notes, scored.subsets_note()]


def _order_note(first: Row, last: Row, tasks: Tasks) -> str:
    """In which tasks the first of an order is better than the last beyond the error."""
    clear, unclear = [], []
    for task, asked in tasks.items():
        pair = (last, first) if in_bits(asked) else (first, last)
        apart = _row_difference(task, *pair)
        if apart:
            (clear if apart.clear else unclear).append(asked["title"])
    where = enumeration(clear) if clear else "no task"
    text = f"{first.variant} is better than {last.variant} by more than {ERRORS} standard errors in {where}"
    return text + (f"; not in {enumeration(unclear)}." if unclear else ".")


def _cards_note(cards: Sequence[Mapping[str, str]]) -> str:
    agreeing = [card for card in cards if card["Settings"] == "agree"]
    outside = [card["Task"] for card in agreeing if card["Within errors"] == "no"]
    text = f"Published scores are judged by the standard error of the score here: within {ERRORS} of them is within errors."
    if agreeing and not outside:
        text += " Where the settings agree, all are."
    elif outside:
        text += f" Where the settings agree, {enumeration(outside)} is not."
    return text


def _difference(task: str, first: Record, second: Record) -> Difference:
    """The first score minus the second, as `paired_difference` of their questions.

    Raises:
        UserError: the questions, prompts or expected answers were not the same.
    """
    questions = [record.value("questions") for record in (first, second)]
    if None in questions or questions[0]["sha256"] != questions[1]["sha256"]:
        raise UserError(
            f"task {task!r} did not ask {first.variant} and {second.variant} the same questions in the same way; "
            "score both again"
        )
    return paired_difference(*(asked["values"] for asked in questions))


def _row_difference(task: str, first: Row, second: Row) -> Difference | None:
    """The difference of two rows on a task; None where one of them has no score."""
    records = first.scores[task], second.scores[task]
    return _difference(task, *records) if all(record.ok for record in records) else None


def _average_difference(averaged: Sequence[str], first: Row, second: Row) -> Difference | None:
    """The mean of the differences over tasks, whose questions are independent samples."""
    differences = [_row_difference(task, first, second) for task in averaged]
    return mean_of(differences) if differences and None not in differences else None


def _above_chance(scored: Scored, baseline: Row | None) -> list[str]:
    """Tasks that every row has an accuracy in and the baseline is clearly better than guessing: what is averaged."""

    def clear(task: str) -> bool:
        score, chance = baseline.scores[task].result, scored.tasks[task].get("chance", 0.0)
        return bool(score) and Difference(score["value"] - chance, score["stderr"]).clear

    return [task for task in scored.averaged if baseline is not None and clear(task)]


KIND = ArtifactKind(
    "table",
    ("models", "variants", "tasks"),
    ("scores", "training"),
    make,
    own={
        "orders": list[Annotated[Names, Field(min_length=2)]],
        "cards": Annotated[list[Text], Unique],
    },
    optional=("orders", "cards"),
    exactly={"models": 1},
    extra=extra,
)
