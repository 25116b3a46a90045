"""Tables of words: answers with early exit, settings of tasks, and the contents page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.artifacts.frame import frame, row
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import MISSING, NONE
from pipeline.artifacts.published import published, read_csv
from pipeline.artifacts.records import Record, checked_records, provenance
from pipeline.artifacts.writers import Column, Footnotes, Grid, Table, print_grid
from pipeline.statistics import exact
from swiftkv.errors import UserError

Entry = Mapping[str, Any]
Files = Mapping[str, Sequence[Path]]
_WAYS = {"early_exit": "early exit", "full_depth": "full depth"}


def answers(entry: Entry, files: Files) -> Table:
    """One grid a question: the answer with early exit, the one at full depth, and the published one."""
    records, footnotes = checked_records(entry, files), Footnotes()
    stated = published(entry, files.get("published", ()), records)
    given = {each["question"]: each for record in records for each in record.result.get("answers", ())}
    rows, grids = [], []
    for question in entry["questions"]:
        printed = []
        for way, title in _WAYS.items():
            run = given.get(question, {}).get(way)
            cells = dict.fromkeys(("Answer", "Tokens", "Exited", "Seconds"), "")
            if run is None:
                why = next((record.why for record in records if not record.ok), "not measured")
                cells["Answer"] = f"{MISSING} {footnotes.mark(why)}"
            else:
                seconds = run["prefill_seconds"] + run["decode_seconds"]
                exited = f"{run['exited']} of {run['tokens'] - 1}" if way == "early_exit" else NONE
                cells |= {"Answer": run["text"] or "(empty)", "Tokens": f"{run['tokens']}", "Exited": exited}
                cells["Seconds"] = f"{seconds:.2f}"
                known = {"part": question, "text": run["text"]}
                rows.append(row(records[0], f"{way}_tokens", exact(run["tokens"]), **known))
                rows.append(row(records[0], f"{way}_exited", exact(run["exited"]), **known))
                rows.append(row(records[0], f"{way}_seconds", seconds, **known))
            printed.append({"": title, **cells})
        for line in stated.to_dict("records"):
            asked, _, answer = line["text"].partition(" - ")
            if asked == question:
                mark = f"published {footnotes.mark(line['reason'])}"
                printed.append({"": mark, "Answer": answer, "Tokens": "", "Exited": "", "Seconds": ""})
                rows.append(line | {"part": question})
        grids.append(Grid(pd.DataFrame(printed), question))
    notes = [*entry.get("notes", []), *provenance(records), *footnotes.lines()]
    return Table(entry["name"], heading(entry), frame(rows), grids, notes)


# Settings of a task and not of the variant.
_SETTINGS = (
    "lm_eval_task", "version", "metric", "filter", "shots", "chat_template", "fewshot_as_multiturn", "generation", "limit",
    "seed",
)  # fmt: skip


def settings(entry: Entry, files: Files) -> Table:
    """Return the settings of each task beside the paper's: (a) prompt and metric, (b) questions, seed and data.

    The first variant with a score is shown; raises a `UserError` where another was run in another way.
    """
    records, footnotes = checked_records(entry, files), Footnotes()
    stated = {line["task"]: line for file in files.get("published", ()) for line in read_csv(file)}
    lines = []
    for task, configured in entry["tasks"].items():
        record = _record_of(task, records)
        used = (configured | {"lm_eval_task": configured["task"]}) | (record.settings if record else {})
        rule, version, theirs = used.get("filter"), used.get("version"), stated.get(task, {})
        limit = (used.get("generation") or {}).get("max_gen_toks") or "lm-eval's default"
        asked = f"{record.value('n'):,} of {record.value('n_total'):,}" if record and record.ok else MISSING
        if not record or not record.ok:
            asked += f" {footnotes.mark(record.why if record else 'not measured')}"
        lines.append({
            "Task": configured["title"],
            "Shots": used["shots"],
            "Shots\n(paper)": theirs.get("shots") or MISSING,
            "Metric": used["metric"] + (f" / {rule}" if rule not in (None, "none") else ""),
            "Metric (paper)": theirs.get("metric") or MISSING,
            "Chat\ntemplate": "yes" if used["chat_template"] else "no",
            "Few-shot as\nmulti-turn": "yes" if used["fewshot_as_multiturn"] else "no",
            "lm-eval task": used["lm_eval_task"] + (f" (v{version})" if version else ""),
            "Generation\nlimit": limit if used.get("output_type") == "generate_until" else NONE,
            "Questions": asked,
            "Seed": used["seed"] if record and record.ok else MISSING,
            "Few-shot examples": used.get("fewshot") or MISSING,
            "Data": _source(record.data) if record and record.data else MISSING,
        })  # fmt: skip
    printed = pd.DataFrame(lines)
    grids = [
        Grid(printed.iloc[:, :7], "(a) Prompt and metric"),
        Grid(printed[["Task", *printed.columns[7:]]], "(b) What was run"),
    ]
    notes = [*entry.get("notes", []), *provenance(records), *footnotes.lines()]
    values = printed.rename(columns=lambda header: header.replace("\n", " "))
    return Table(entry["name"], heading(entry), values, grids, notes)


def _record_of(task: str, records: Sequence[Record]) -> Record | None:
    found = [record for record in records if record.what == task]
    scored = [record for record in found if record.ok]
    for record in scored[1:]:
        for name in _SETTINGS:
            first, other = scored[0].settings.get(name), record.settings.get(name)
            if first != other:
                raise UserError(
                    f"task {task} was not run in one way: {name} is {first} for {scored[0].variant} and {other} for "
                    f"{record.variant}; score them again"
                )
    return next(iter([*scored, *found]), None)


def _source(source: Mapping[str, Any]) -> str:
    """Where a data set came from: kind, name, and the beginning of its version."""
    # Either resolved ("kind" and "id") or as it stands in the config ({"hub": id}), where nothing could be resolved.
    kind = source.get("kind") or next((kind for kind in ("hub", "package", "local") if kind in source), None)
    words = [
        kind,
        source.get("id") or source.get(kind),
        str(source.get("resolved") or source.get("revision") or "")[:12],
    ]
    return " ".join(str(word) for word in dict.fromkeys(words) if word) or "not recorded"


def contents(entry: Entry, files: Files) -> Table:
    """Return a grid a section, a row a table or figure: its models and files at this scale, or why there are none."""
    footnotes, lines = Footnotes(), entry["lines"]
    columns = [
        Column("Item", lambda line: line["item"]),
        Column("Shows", lambda line: line["title"]),
        Column("Kind", lambda line: line["kind"]),
        Column("Models", lambda line: line["models"] or NONE),
        Column("Files", lambda line: line["files"] or f"not made {footnotes.mark(line['reason'])}"),
    ]
    grids = [
        print_grid(columns, [line for line in lines if line["section"] == section], caption=section)
        for section in dict.fromkeys(line["section"] for line in lines)
    ]
    notes = [*entry.get("notes", []), *footnotes.lines()]
    return Table(entry["name"], heading(entry), pd.DataFrame(lines), grids, notes)
