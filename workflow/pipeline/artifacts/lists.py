"""Tables of words: answers with early exit, settings of tasks, and the contents page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.artifacts.frame import frame, row
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import MISSING, NONE
from pipeline.artifacts.published import Entry, Files, Numbers, read_csv
from pipeline.artifacts.writers import Footnotes, Grid, Table
from pipeline.statistics import exact

_WAYS = {"early_exit": "early exit", "full_depth": "full depth"}


def answers(entry: Entry, files: Files) -> Table:
    """One grid a question: the answer with early exit, the one at full depth, and the published one."""
    shown, footnotes = Numbers(entry, files), Footnotes()
    records, stated = shown.records, shown.published.to_dict("records")
    given = {each["question"]: each for record in records for each in record.result.get("answers", ())}
    missing = next((record.why for record in records if not record.ok), "not measured")
    rows, grids = [], []
    for question in entry["questions"]:
        printed = []
        for way, title in _WAYS.items():
            if run := given.get(question, {}).get(way):
                seconds = run["prefill_seconds"] + run["decode_seconds"]
                exited = f"{run['exited']} of {run['tokens'] - 1}" if way == "early_exit" else NONE
                printed.append((title, run["text"] or "(empty)", f"{run['tokens']}", exited, f"{seconds:.2f}"))
                numbers = {"tokens": exact(run["tokens"]), "exited": exact(run["exited"]), "seconds": seconds}
                for name, value in numbers.items():
                    rows.append(row(records[0], f"{way}_{name}", value, part=question, text=run["text"]))
            else:
                printed.append((title, f"{MISSING} {footnotes.mark(missing)}", "", "", ""))
        for line in stated:
            asked, _, answer = line["text"].partition(" - ")
            if asked == question:
                printed.append((f"published {footnotes.mark(line['reason'])}", answer, "", "", ""))
                rows.append(line | {"part": question})
        grids.append(Grid(pd.DataFrame(printed, columns=["", "Answer", "Tokens", "Exited", "Seconds"]), question))
    return Table(entry["name"], heading(entry), frame(rows), grids, [*shown.notes, *footnotes.lines()])


def settings(entry: Entry, files: Files) -> Table:
    """Return the settings of each task beside the paper's: (a) prompt and metric, (b) questions, seed and data."""
    shown, footnotes = Numbers(entry, files), Footnotes()
    stated = {line["task"]: line for file in files.get("published", ()) for line in read_csv(file)}
    lines = []
    for task, configured in entry["tasks"].items():
        scores = sorted((record for record in shown.records if record.what == task), key=lambda record: not record.ok)
        record = scores[0] if scores else None
        used = configured | {"lm_eval_task": configured["task"]} | (record.settings if record else {})
        rule, version, theirs = used.get("filter"), used.get("version"), stated.get(task, {})
        limit = (used.get("generation") or {}).get("max_gen_toks") or "lm-eval's default"
        if scored := record is not None and record.ok:
            asked = f"{record.value('n'):,} of {record.value('n_total'):,}"
        else:
            asked = f"{MISSING} {footnotes.mark(record.why if record else 'not measured')}"
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
            "Seed": used["seed"] if scored else MISSING,
            "Few-shot examples": used.get("fewshot") or MISSING,
            "Data": _source(record.data) if record and record.data else MISSING,
        })  # fmt: skip
    printed = pd.DataFrame(lines)
    grids = [
        Grid(printed.iloc[:, :7], "(a) Prompt and metric"),
        Grid(printed[["Task", *printed.columns[7:]]], "(b) What was run"),
    ]
    values = printed.rename(columns=lambda header: header.replace("\n", " "))
    return Table(entry["name"], heading(entry), values, grids, [*shown.notes, *footnotes.lines()])


def _source(source: Mapping[str, Any]) -> str:
    """Where a data set came from: kind, name, and the beginning of its version."""
    # Either resolved ("kind" and "id") or as it stands in the config ({"hub": id}), where nothing could be resolved.
    kind = source.get("kind") or next(kind for kind in ("hub", "package", "local") if kind in source)
    version = source.get("resolved") or source.get("revision") or ""
    return f"{kind} {source.get('id') or source[kind]} {version[:12]}".strip()


def contents(entry: Entry, files: Files) -> Table:
    """Return a grid a section, a row a table or figure: its models and files at this scale, or why there are none."""
    footnotes, sections = Footnotes(), {}
    for line in entry["lines"]:
        sections.setdefault(line["section"], []).append({
            "Item": line["item"],
            "Shows": line["title"],
            "Kind": line["kind"],
            "Models": line["models"] or NONE,
            "Files": line["files"] or f"not made {footnotes.mark(line['reason'])}",
        })  # fmt: skip
    grids = [Grid(pd.DataFrame(printed), section) for section, printed in sections.items()]
    return Table(entry["name"], heading(entry), pd.DataFrame(entry["lines"]), grids, footnotes.lines())
