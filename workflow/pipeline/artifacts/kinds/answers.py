"""Questions answered with early exit and at full depth, and what the paper's model answered: Table D.2 and Appendix E.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.artifacts.columns import Column, Line, grid, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.kinds import early_exit
from pipeline.artifacts.records import read_records, read_statements
from pipeline.artifacts.table import Footnotes, Table
from swiftkv.errors import UserError
from swiftkv.section import Names

_CELLS = ("text", "tokens", "exited", "seconds", "missing", "note")
_WAYS = {"early_exit": "early exit", "full_depth": "full depth"}


def extra(config: Config, entry: Entry) -> dict[str, Any]:
    """As `early_exit.extra`; refuses questions that are not answered."""
    asked = config.early_exit.questions
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
    lines, footnotes = [], Footnotes()
    for question in entry["questions"]:
        head = {"model": model["name"], "title": model["title"], "variant": variant, "question": question}
        head |= dict.fromkeys(("decoding", *_CELLS))
        lines += [head | {"decoding": way} | _answer(given.get(question), way, missing) for way in _WAYS]
        for row in read_statements(entry, files):
            asked, _, answer = row["text"].partition(" - ")
            if asked == question:
                lines.append(head | {"decoding": "published", "text": answer, "note": row["note"]})

    def label(line: Line) -> str:
        return _WAYS.get(line["decoding"]) or f"published {footnotes.mark(line['note'])}"

    columns = [
        Column("", label),
        Column("Answer", lambda line: None if line["missing"] else line["text"] or "(empty)", why="missing"),
        Column("Tokens", lambda line: _number(line, "tokens")),
        Column("Exited", _exited),
        Column("Seconds", lambda line: _number(line, "seconds", ".2f")),
    ]
    panels = [
        grid([line for line in lines if line["question"] == question], columns, footnotes, question)
        for question in entry["questions"]
    ]
    return table(entry, lines, panels, entry.get("notes", []), footnotes)


def _answer(row: Mapping[str, Any] | None, way: str, missing: str | None) -> dict[str, Any]:
    if row is None:
        return {"missing": missing or "this question was not asked"}
    run = row[way]
    seconds = run["prefill_seconds"] + run["decode_seconds"]
    return {"text": run["text"], "tokens": run["tokens"], "exited": run["exited"], "seconds": seconds}


def _number(line: Line, name: str, form: str = "") -> str | None:
    """A number of an answer; nothing for a published one."""
    return "" if line["decoding"] == "published" else None if line[name] is None else f"{line[name]:{form}}"


def _exited(line: Line) -> str | None:
    number = _number(line, "exited")
    return "–" if number and line["decoding"] == "full_depth" else number and f"{number} of {line['tokens'] - 1}"


KIND = ArtifactKind(
    "table",
    ("models", "variants"),
    ("early_exit",),
    make,
    own={"questions": Names},
    exactly={"models": 1, "cases": 1},
    extra=extra,
)
