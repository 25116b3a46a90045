"""Scores beside their paired differences to the baseline: tasks that tell the variants of a small model apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.paired import (
    ERRORS,
    Difference,
    above_chance,
    average_difference,
    in_bits,
    row_difference,
    unit,
)
from swiftkv.artifacts.records import MISSING, Record, read_published
from swiftkv.artifacts.scored import Row, average, decimals, rows, subsets_note
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, heading, mean_and_error
from swiftkv.errors import UserError
from swiftkv.section import Names, Text, Unique

Tasks = Mapping[str, Mapping[str, Any]]

CARDS = "resources/published"
_BITS_DIGITS = 3


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """The orders with this scale's stand-ins, doubles dropped.

    Raises:
        UserError: an order names a variant that the entry does not show.
    """
    shown = {variant for variant, _ in entry["cases"]}
    orders = [
        list(dict.fromkeys(config["stand_ins"].get(name, name) for name in order)) for order in entry.get("orders", [])
    ]
    if unknown := [name for order in orders for name in order if name not in shown]:
        raise UserError(f"artifacts.{entry['name']}: orders name {unknown[0]!r}, which is not among its variants")
    return {"orders": [order for order in orders if len(order) > 1]}


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Scores of every row, and what others published of the model."""
    return {"scores": paths.scores(config, entry), "cards": [f"{CARDS}/{name}.csv" for name in entry.get("cards", [])]}


def make(entry: Entry, files: Files) -> Table:
    """Panels: (a) scores and differences to the baseline, (b) differences along the orders, (c) published scores.

    Raises:
        UserError: two rows were not asked the same questions.
    """
    found, tasks, footnotes = rows(entry, files), entry["tasks"], Footnotes()
    baseline = next((row for row in found if row.spec is None and row.kv_cache == "auto"), None)
    averaged = above_chance(found, baseline, tasks)
    digits = decimals(found, [task for task in tasks if not in_bits(tasks[task])])
    printed, values, rules = [], [], []
    for row in found:
        rules.append(len(printed))
        printed.append({"Variant": row.variant, **_scores(row, tasks, averaged, digits, footnotes, found)})
        values.append(_values("measured", row, None, tasks, averaged))
        if baseline not in (None, row):
            apart = _differences(row, baseline, tasks, averaged, digits, sign=False)
            printed.append({"Variant": "difference", **dict(zip(list(printed[-1])[1:], apart, strict=True))})
            values[-1] |= _difference_values(row, baseline, tasks, averaged)
    panels = [Panel(pd.DataFrame(printed), "(a) Scores, and below each the difference to the baseline", tuple(rules))]
    steps = [step for order in entry["orders"] for step in _steps(order)]
    by_variant = {row.variant: row for row in found if row.kv_cache == "auto"}
    if steps:
        compared = []
        for first, second in steps:
            pair = by_variant[first], by_variant[second]
            apart = _differences(*pair, tasks, averaged, digits, sign=True)
            head = {"Variant": first, "against": second}
            compared.append(head | dict(zip(list(printed[0])[1:], apart, strict=True)))
            values.append(_values("step", pair[0], second, tasks, averaged))
            values[-1] |= _difference_values(*pair, tasks, averaged)
        panels.append(Panel(pd.DataFrame(compared), "(b) How much better the first is than the second"))
    published = _published(entry, files, baseline)
    cards = [_card(card, baseline.score(card["task"]), tasks[card["task"]], digits) for card in published]
    if cards:
        panels.append(Panel(pd.DataFrame(cards), f"({'c' if steps else 'b'}) The baseline beside its published scores"))
    notes = [
        *entry.get("notes", []),
        *_notes(found, tasks, averaged),
        *(_order_note(by_variant[order[0]], by_variant[order[-1]], tasks) for order in entry["orders"]),
        *([_cards_note(cards)] if cards else []),
        *dict.fromkeys(card["note"] for card in published if card["note"]),
        *footnotes.lines(),
    ]
    return Table(entry["name"], heading(entry), pd.DataFrame(values), panels, notes)


def _scores(
    row: Row, tasks: Tasks, averaged: Sequence[str], digits: int, footnotes: Footnotes, found: Sequence[Row]
) -> dict[str, str]:
    cells = {}
    for task, asked in tasks.items():
        record = row.score(task)
        sizes = sorted({record["result"]["n"] for one in found if (record := one.score(task))})
        lines = [asked["title"], f"{asked['shots']}-shot", *(f"n = {size:,}" for size in sizes)]
        if in_bits(asked):
            lines.insert(1, "bits a byte")
        result = (row.score(task) or {}).get("result")
        text = _number(result and Difference(result["value"], result["stderr"]), asked, digits)
        missing = "" if result else f" {footnotes.mark(row.reason(row.scores.get(task)))}"
        cells["\n".join(lines)] = text + missing
    mean, error = average(row, averaged)
    return cells | {"Avg.": MISSING if mean is None else mean_and_error(mean, error, digits)}


def _differences(
    first: Row, second: Row, tasks: Tasks, averaged: Sequence[str], digits: int, *, sign: bool
) -> list[str]:
    """Cells of the differences; with `sign` positive is better, in bits per byte too."""
    cells = []
    for task, asked in tasks.items():
        pair = (second, first) if sign and in_bits(asked) else (first, second)
        cells.append(_number(row_difference(task, *pair), asked, digits, "+"))
    return [*cells, _number(average_difference(averaged, first, second), None, digits, "+")]


def _number(found: Difference | None, task: Mapping[str, Any] | None, digits: int, sign: str = "") -> str:
    """A value with its error in the unit of its task; the average is in percent."""
    if not found:
        return MISSING
    scale, places = (100.0, digits) if task is None or not in_bits(task) else (1.0, _BITS_DIGITS)
    error = None if found.stderr is None else scale * found.stderr
    return (sign if found.value >= 0 else "") + mean_and_error(scale * found.value, error, places)


def _steps(order: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbours of an order, and its two ends."""
    ends = [(order[0], order[-1])] if len(order) > 2 else []
    return [*pairwise(order), *ends]


def _values(kind: str, row: Row, against: str | None, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: scores and their errors in percent, or bits per byte."""
    values: dict[str, Any] = {
        "row": kind,
        "model": row.model["name"],
        "title": row.model["title"],
        "variant": row.variant,
        "kv_cache": row.kv_cache,
        "against": against,
    }
    if kind == "measured":
        for task, asked in tasks.items():
            result = (row.score(task) or {}).get("result") or {}
            values[task] = unit(asked) * result["value"] if result else None
            error = result.get("stderr")
            values[f"{task}_stderr"] = None if error is None else unit(asked) * error
            values[f"{task}_n"] = result.get("n")
        values["average"], values["average_stderr"] = average(row, averaged)
        values["average_tasks"] = " ".join(averaged)
        missing = [f"{task}: {row.reason(row.scores.get(task))}" for task in tasks if not row.score(task)]
        values["missing"] = "; ".join(missing) or None
    return values


def _difference_values(first: Row, second: Row, tasks: Tasks, averaged: Sequence[str]) -> dict[str, Any]:
    """Further cells of a line: first minus second, in the unit of the score."""
    found = {task: (row_difference(task, first, second), unit(tasks[task])) for task in tasks}
    found["average"] = average_difference(averaged, first, second), 100.0
    values = {}
    for name, (apart, scale) in found.items():
        values[f"{name}_difference"] = scale * apart.value if apart else None
        known = apart and apart.stderr is not None
        values[f"{name}_difference_stderr"] = scale * apart.stderr if known else None
    return values


def _published(entry: Entry, files: Files, baseline: Row | None) -> list[Record]:
    """What others published of the model, on the tasks that were scored here."""
    return [
        card
        for card in read_published(files.get("cards", ()))
        if baseline is not None
        and card["model"] == baseline.model["published"]
        and card["task"] in entry["tasks"]
        and baseline.score(card["task"])
    ]


def _card(card: Record, record: Record, task: Mapping[str, Any], digits: int) -> dict[str, str]:
    result = record["result"]
    error = result["stderr"]
    apart = None if not error else (100 * result["value"] - card["value"]) / (100 * error)
    asked = [card["tool"], f"{card['shots']:g}-shot", *([card["metric"]] if card["metric"] else [])]
    return {
        "Task": task["title"],
        "Here": _number(Difference(result["value"], error), task, digits),
        "Published": f"{card['value']:g}",
        "Apart,\nstandard errors": MISSING if apart is None else f"{apart:+.1f}",
        "Within errors": MISSING if apart is None else "yes" if abs(apart) <= ERRORS else "no",
        "Published with": ", ".join(asked),
        "Settings": f"differ: {card['differs']}" if card["differs"] else "agree",
        "Source": card["source"],
    }


def _notes(found: Sequence[Row], tasks: Tasks, averaged: Sequence[str]) -> list[str]:
    bits = [asked["title"] for asked in tasks.values() if in_bits(asked)]
    notes = [
        "Accuracies are in percent; a difference is the mean over questions that both were asked, with the standard error "
        "of that mean, so it is known better than either score.",
    ]
    if bits:
        notes.append(
            f"{enumeration(bits)}: bits the model needs for a byte of the right answer, of which fewer are better."
        )
    over = enumeration([tasks[task]["title"] for task in averaged])
    notes.append(
        f"Avg. is the mean over {over}, in which the baseline is above chance by more than {ERRORS} standard errors."
        if averaged
        else f"There is no average: in no accuracy is the baseline above chance by more than {ERRORS} standard errors."
    )
    return [*notes, subsets_note(found, tasks)]


def _order_note(first: Row, last: Row, tasks: Tasks) -> str:
    """In which tasks the first of an order is better than the last beyond the error."""
    clear, unclear = [], []
    for task, asked in tasks.items():
        pair = (last, first) if in_bits(asked) else (first, last)
        apart = row_difference(task, *pair)
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


KIND = Kind(
    "table",
    ("models", "variants", "tasks"),
    needs,
    make,
    own={
        "orders": list[Annotated[Names, Field(min_length=2)]],
        "cards": Annotated[list[Text], Unique],
    },
    optional=("orders", "cards"),
    exactly={"models": 1},
    extra=extra,
)
