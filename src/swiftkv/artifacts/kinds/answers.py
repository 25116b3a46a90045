"""Questions answered with early exit and at full depth, and what the paper's model answered: Table D.2 and Appendix E.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.kinds import early_exit
from swiftkv.artifacts.records import MISSING, published_values, read_published, read_records, reason
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import heading
from swiftkv.errors import UserError
from swiftkv.section import Names

_WAYS = {"early_exit": "early exit", "full_depth": "full depth"}


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """As `early_exit.extra`.

    Raises:
        UserError: as there, or a question is not among those that are answered.
    """
    asked = config["early_exit"]["questions"]
    if unknown := [question for question in entry["questions"] if question not in asked]:
        raise UserError(
            f"config, at artifacts.{entry['name']}: the question {unknown[0]!r} is not among early_exit.questions"
        )
    return early_exit.extra(config, entry)


def make(entry: Entry, files: Files) -> Table:
    """One panel a question: the answer with early exit, the one at full depth, and the published one."""
    (model,), ((variant, _),) = entry["models"], entry["cases"]
    record = read_records(files.get("early_exit", ()), "early_exit").find(model["name"], variant)
    ok = record is not None and record["status"] == "ok"
    given = {row["question"]: row for row in record["result"]["answers"]} if ok else {}
    missing = None if ok else reason(entry, record, model["name"], variant)
    statements = published_values(read_published(files.get("published", ())), entry["name"])
    values, panels, footnotes = [], [], Footnotes()
    for question in entry["questions"]:
        head = {"model": model["name"], "title": model["title"], "variant": variant, "question": question}
        rows = [{**head, "decoding": way, **_answer(given.get(question), way, missing)} for way in _WAYS]
        for row in statements:
            asked, _, answer = row["text"].partition(" - ")
            if asked == question:
                rows.append({**head, **_published(answer, row["note"])})
        values += rows
        panels.append(Panel(pd.DataFrame([_cells(row, footnotes) for row in rows]), question))
    settings = record["settings"] if ok else {}
    cut = f", at most {settings['max_new_tokens']} tokens" if ok else ""
    notes = [
        f"Greedy decoding{cut}. Exited: of the tokens after the first, which prefill predicts, those that left at layer l "
        f"because the early exit's largest probability was above {100 * entry['threshold']:g} %.",
        *entry.get("notes", []),
        *footnotes.lines(),
    ]
    columns = [
        "model",
        "title",
        "variant",
        "question",
        "decoding",
        "text",
        "tokens",
        "exited",
        "seconds",
        "missing",
        "note",
    ]
    return Table(entry["name"], heading(entry), pd.DataFrame(values, columns=columns), panels, notes)


def _answer(row: Mapping[str, Any] | None, way: str, missing: str | None) -> dict[str, Any]:
    if row is None:
        return {"missing": missing or "this question was not asked"}
    run = row[way]
    seconds = run["prefill_seconds"] + run["decode_seconds"]
    return {"text": run["text"], "tokens": run["tokens"], "exited": run["exited"], "seconds": seconds}


def _published(text: str, note: str) -> dict[str, Any]:
    return {"decoding": "published", "text": text, "note": note}


def _cells(row: Mapping[str, Any], footnotes: Footnotes) -> dict[str, str]:
    if row.get("missing"):
        return {"": _WAYS[row["decoding"]], "Answer": f"{MISSING} {footnotes.mark(row['missing'])}"} | _empty()
    if row["decoding"] == "published":
        return {"": f"published {footnotes.mark(row['note'])}", "Answer": row["text"]} | _empty("")
    steps = row["tokens"] - 1
    exited = f"{row['exited']} of {steps}" if row["decoding"] == "early_exit" else "–"
    return {
        "": _WAYS[row["decoding"]],
        "Answer": row["text"] or "(empty)",
        "Tokens": str(row["tokens"]),
        "Exited": exited,
        "Seconds": f"{row['seconds']:.2f}",
    }


def _empty(text: str = MISSING) -> dict[str, str]:
    return dict.fromkeys(("Tokens", "Exited", "Seconds"), text)


KIND = Kind(
    "table",
    ("models", "variants"),
    early_exit.needs,
    make,
    own={"questions": Names},
    exactly={"models": 1, "cases": 1},
    extra=extra,
)
