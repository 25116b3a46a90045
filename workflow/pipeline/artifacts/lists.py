"""Make tables of text: answers with early exit, settings of tasks, and the contents page."""

from __future__ import annotations

import pandas as pd

from pipeline.artifacts import Content, Entry, Files
from pipeline.artifacts.frame import frame, row
from pipeline.artifacts.metrics import MISSING, NONE
from pipeline.artifacts.published import Numbers, read_csv
from pipeline.artifacts.writers import Footnotes, Grid, Table
from pipeline.statistics import exact

_WAYS = {"early_exit": "early exit", "full_depth": "full depth"}


def answers(entry: Entry, files: Files) -> Table:
    """Return a grid a question: its answers with early exit, at full depth, and published."""
    measurements, footnotes = Numbers(entry, files), Footnotes()
    records = measurements.records
    measured = {answer["question"]: answer for record in records for answer in record.result.get("answers", ())}
    missing = next((record.reason for record in records if not record.ok), "not measured")
    rows, grids = [], []
    for question in entry["questions"]:
        printed = []
        for way, title in _WAYS.items():
            run = measured.get(question, {}).get(way)
            if not run:
                printed.append((title, f"{MISSING} {footnotes.mark(missing)}", "", "", ""))
                continue
            text, tokens, seconds = run["text"], run["tokens"], run["prefill_seconds"] + run["decode_seconds"]
            exited = f"{run['exited']} of {tokens - 1}" if way == "early_exit" else NONE
            printed.append((title, text or "(empty)", f"{tokens}", exited, f"{seconds:.2f}"))
            values = {"tokens": exact(tokens), "exited": exact(run["exited"]), "seconds": seconds}
            rows += (row(records[0], f"{way}_{name}", values[name], part=question, text=text) for name in values)
        for line in measurements.published.to_dict("records"):
            asked, _, answer = line["text"].partition(" - ")
            if asked == question:
                printed.append((f"published {footnotes.mark(line['reason'])}", answer, "", "", ""))
                rows.append(line | {"part": question})
        grids.append(Grid(pd.DataFrame(printed, columns=["", "Answer", "Tokens", "Exited", "Seconds"]), question))
    return Table(frame(rows), grids, [*measurements.notes, *footnotes.lines()])


def settings(entry: Entry, files: Files) -> Table:
    """Return the settings of each task beside the paper's: (a) prompt and metric, (b) questions, seed and data."""
    measurements, footnotes = Numbers(entry, files), Footnotes()
    published = {line["task"]: line for file in files.get("published", ()) for line in read_csv(file)}
    lines = []
    for task, configured in entry["tasks"].items():
        scores = (record for record in measurements.records if record.what == task)
        record = max(scores, key=lambda record: record.ok, default=None)
        used = configured | {"lm_eval_task": configured["task"]} | (record.settings if record else {})
        rule, version, paper = used.get("filter"), used.get("version"), published.get(task, {})
        limit = (used.get("generation") or {}).get("max_gen_toks") or "lm-eval's default"
        if scored := record is not None and record.ok:
            asked = f"{record.value('n'):,} of {record.value('n_total'):,}"
        else:
            asked = f"{MISSING} {footnotes.mark(record.reason if record else 'not measured')}"
        lines.append({
            "Task": configured["title"],
            "Shots": used["shots"],
            "Shots\n(paper)": paper.get("shots") or MISSING,
            "Metric": used["metric"] + (f" / {rule}" if rule not in (None, "none") else ""),
            "Metric (paper)": paper.get("metric") or MISSING,
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
    return Table(values, grids, [*measurements.notes, *footnotes.lines()])


def _source(source: Content) -> str:
    """Return the kind and name of a data set's source, and the beginning of its version."""
    # Either resolved ("kind" and "id") or as it stands in the config ({"hub": id}), where nothing could be resolved.
    kind = source.get("kind") or next(kind for kind in ("hub", "package", "local") if kind in source)
    version = source.get("resolved") or source.get("revision") or ""
    return f"{kind} {source.get('id') or source[kind]} {version[:12]}".strip()


def contents(entry: Entry, files: Files) -> Table:
    """Return a grid a section, a row a table or figure: its models and files at this scale, or why it is not made."""
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
    return Table(pd.DataFrame(entry["lines"]), grids, footnotes.lines())
