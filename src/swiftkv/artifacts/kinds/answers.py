"""Questions answered with early exit and at full depth, and what the paper's model answered: Table D.2 and Appendix E.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files
from swiftkv.artifacts.kinds import early_exit
from swiftkv.artifacts.records import MISSING, read_records, read_statements
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import heading
from swiftkv.errors import UserError
from swiftkv.section import Names

_COLUMNS = [
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
    record = read_records(entry, files.get("early_exit", ()), "early_exit").find(model["name"], variant)
    given = {row["question"]: row for row in record.result.get("answers", ())}
    missing = None if record.ok else record.why
    statements = read_statements(entry, files)
    values, panels, footnotes = [], [], Footnotes()
    for question in entry["questions"]:
        head = {"model": model["name"], "title": model["title"], "variant": variant, "question": question}
        rows = [{**head, "decoding": way, **_answer(given.get(question), way, missing)} for way in _WAYS]
        for row in statements:
            asked, _, answer = row["text"].partition(" - ")
            if asked == question:
                rows.append({**head, "decoding": "published", "text": answer, "note": row["note"]})
        values += rows
        panels.append(Panel(pd.DataFrame([_cells(row, footnotes) for row in rows]), question))
    cut = f", at most {record.settings['max_new_tokens']} tokens" if record.ok else ""
    notes = [
        f"Greedy decoding{cut}. Exited: of the tokens after the first, which prefill predicts, those that left at layer l "
        f"because the early exit's largest probability was above {100 * entry['threshold']:g} %.",
        *entry.get("notes", []),
        *footnotes.lines(),
    ]
    return Table(entry["name"], heading(entry), pd.DataFrame(values, columns=_COLUMNS), panels, notes)


def _answer(row: Mapping[str, Any] | None, way: str, missing: str | None) -> dict[str, Any]:
    if row is None:
        return {"missing": missing or "this question was not asked"}
    run = row[way]
    seconds = run["prefill_seconds"] + run["decode_seconds"]
    return {"text": run["text"], "tokens": run["tokens"], "exited": run["exited"], "seconds": seconds}


def _cells(row: Mapping[str, Any], footnotes: Footnotes) -> dict[str, str]:
    numbers = ("Tokens", "Exited", "Seconds")
    if row.get("missing"):
        answer = {"": _WAYS[row["decoding"]], "Answer": f"{MISSING} {footnotes.mark(row['missing'])}"}
        return answer | dict.fromkeys(numbers, MISSING)
    if row["decoding"] == "published":
        return {"": f"published {footnotes.mark(row['note'])}", "Answer": row["text"]} | dict.fromkeys(numbers, "")
    steps = row["tokens"] - 1
    exited = f"{row['exited']} of {steps}" if row["decoding"] == "early_exit" else "–"
    return {
        "": _WAYS[row["decoding"]],
        "Answer": row["text"] or "(empty)",
        "Tokens": str(row["tokens"]),
        "Exited": exited,
        "Seconds": f"{row['seconds']:.2f}",
    }


KIND = ArtifactKind(
    "table",
    ("models", "variants"),
    ("early_exit",),
    make,
    own={"questions": Names},
    exactly={"models": 1, "cases": 1},
    extra=extra,
)
