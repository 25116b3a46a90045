"""How each task was really run, beside what the paper says: Table B.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import MISSING, Record, read_published, read_records
from swiftkv.artifacts.scored import backends_note
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.artifacts.text import enumeration, heading
from swiftkv.errors import UserError

# What belongs to the task and not to the variant.
_SETTINGS = (
    "lm_eval_task",
    "version",
    "metric",
    "filter",
    "shots",
    "chat_template",
    "fewshot_as_multiturn",
    "generation",
    "limit",
    "seed",
)


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Scores of every row."""
    return {"scores": paths.scores(config, entry)}


def make(entry: Entry, files: Files) -> Table:
    """Two panels, (a) prompt and metric and (b) what was run, one row a task.

    Where the entry has several variants the first one with a score is shown.

    Raises:
        UserError: two variants were scored in different ways.
    """
    records = list(read_records(entry, files.get("scores", ()), "score"))
    published = {row["task"]: row for row in read_published(files.get("published", ()))}
    footnotes, values, settings, runs = Footnotes(), [], [], []
    for task, configured in entry["tasks"].items():
        record = _record_of(task, records)
        row = _values(entry, task, configured, record, published.get(task, {}))
        values.append(row)
        settings.append({
            "Task": row["title"],
            "Shots": _cell(row["shots"]),
            "Shots\n(paper)": _cell(row["shots_published"]),
            "Metric": row["metric"] + (f" / {row['filter']}" if row["filter"] not in (None, "none") else ""),
            "Metric (paper)": _cell(row["metric_published"]),
            "Chat\ntemplate": _yes(row["chat_template"]),
            "Few-shot as\nmulti-turn": _yes(row["fewshot_as_multiturn"]),
        })  # fmt: skip
        questions = f"{row['n']:,} of {row['n_total']:,}" if row["status"] == "ok" else ""
        runs.append({
            "Task": row["title"],
            "lm-eval task": row["lm_eval_task"] + (f" (v{row['lm_eval_version']})" if row["lm_eval_version"] else ""),
            "Generation\nlimit": _limit(row),
            "Questions": questions or f"{MISSING} {footnotes.mark(row['reason'])}",
            "Seed": _cell(row["seed"]),
            "Few-shot examples": _cell(row["fewshot_examples"]),
            "Data": row["data_source"],
        })  # fmt: skip
    notes = [
        *entry.get("notes", []),
        "Generation limit: tokens a generated answer may have; log-likelihood tasks generate nothing.",
        "The paper's metric names are those of neuralmagic's lm-evaluation-harness branch llama_3.1_instruct; "
        "exact_match / strict_match is their counterpart in lm-eval 0.4.",
    ]
    if made := backends_note(records, entry["tasks"]):
        notes.append(made)
    if sources := sorted({row["source"] for row in published.values()}):
        notes.append(f"(paper): {enumeration(sources)}.")
    panels = [
        Panel(pd.DataFrame(settings), "(a) Prompt and metric"),
        Panel(pd.DataFrame(runs), "(b) What was run"),
    ]
    return Table(entry["name"], heading(entry), pd.DataFrame(values), panels, [*notes, *footnotes.lines()])


def _record_of(task: str, records: list[Record]) -> Record | None:
    """The first record of a task, one with a score if there is any."""
    found = [record for record in records if record.settings["task"] == task]
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


def _values(
    entry: Entry, task: str, configured: Mapping[str, Any], record: Record | None, theirs: Mapping[str, Any]
) -> dict[str, Any]:
    """A line of the CSV; empty cells are settings that were not recorded."""
    settings = record.settings if record else {}
    result = record.result if record else {}
    shots = theirs.get("shots")
    (model, *_), ((variant, _), *_) = entry["models"], entry["cases"]
    return {
        "task": task,
        "title": configured["title"],
        "status": record.status if record else "unavailable",
        "reason": None
        if result
        else record.why
        if record
        else entry["unmeasured"].get(model["name"], {}).get(variant) or "not measured",
        "shots": settings.get("shots", configured["shots"]),
        "shots_published": None if shots is None else int(shots),
        "metric": settings.get("metric") or configured["metric"],
        "filter": settings.get("filter"),
        "metric_published": theirs.get("metric"),
        "chat_template": settings.get("chat_template"),
        "fewshot_as_multiturn": settings.get("fewshot_as_multiturn"),
        "output_type": settings.get("output_type"),
        "max_gen_toks": (settings.get("generation") or {}).get("max_gen_toks"),
        "n": result.get("n"),
        "n_total": result.get("n_total"),
        "seed": settings.get("seed") if result else None,
        "fewshot_examples": settings.get("fewshot"),
        "lm_eval_task": settings.get("lm_eval_task") or configured["task"],
        "lm_eval_version": settings.get("version"),
        "data_source": _source(record.data) if record and record.data else MISSING,
        "prompt_example": settings.get("prompt_example"),
    }


def _source(source: Mapping[str, Any]) -> str:
    """Where a data set came from, in a few words."""
    # Either resolved ("kind" and "id") or as it stands in the config ({"hub": id}), where nothing could be resolved.
    kind = source.get("kind") or next((kind for kind in ("hub", "package", "local") if kind in source), None)
    identity, version = source.get("id") or source.get(kind), source.get("resolved") or source.get("revision")
    words = [str(word) for word in (kind, identity) if word]
    if version and str(version) not in words:
        words.append(str(version)[:12])
    return " ".join(words) or "not recorded"


def _limit(row: Mapping[str, Any]) -> str:
    if row["output_type"] is None:
        return MISSING
    if row["output_type"] != "generate_until":
        return "–"
    return f"{row['max_gen_toks']:,}" if row["max_gen_toks"] else "lm-eval's default"


def _cell(value: Any) -> str:
    return MISSING if value is None else str(value)


def _yes(value: bool | None) -> str:
    return MISSING if value is None else "yes" if value else "no"


KIND = Kind("table", ("models", "variants", "tasks"), needs, make, exactly={"models": 1})
