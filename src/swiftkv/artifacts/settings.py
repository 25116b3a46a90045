"""Table B.1: how each task was really run, next to what the paper says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from swiftkv.artifacts.inputs import Record, describe_source
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.errors import UserError

MISSING = "n/a"


def tableB1(
    scores: Mapping[tuple[str, str], Record], tasks: Mapping[str, Mapping[str, Any]], published: Mapping
) -> Table:
    """Table B.1 from score records.

    Args:
        scores: score records of one model by (task, variant); where several variants are given the first is shown, and
            they must agree, as settings belong to the task.
        tasks: rows, in order: task name -> {"title", "shots"}.
        published: rows of the paper's table by (task,).

    Raises:
        UserError: no records, or two variants scored in different ways.
    """
    if not scores:
        raise UserError("Table B.1 needs at least one score file")
    footnotes, values, settings, runs = Footnotes(), [], [], []
    for task, entry in tasks.items():
        record = _record_of(task, scores)
        row = _values(task, entry, record, published.get((task,)) or {})
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
        questions = MISSING if row["n"] is None else f"{row['n']:,} of {row['n_total']:,}"
        if row["status"] != "ok":
            questions = f"{MISSING} {footnotes.mark(row['reason'])}"
        runs.append({
            "Task": row["title"],
            "lm-eval task": row["lm_eval_task"] + (f" (v{row['lm_eval_version']})" if row["lm_eval_version"] else ""),
            "Generation\nlimit": _limit(row),
            "Questions": questions,
            "Seed": _cell(row["seed"]),
            "Few-shot examples": _cell(row["fewshot_examples"]),
            "Data": row["data_source"],
        })  # fmt: skip
    title = next(iter(scores.values()))["title"]
    notes = [
        "Generation limit: tokens a generated answer may have; log-likelihood tasks generate nothing.",
        "The paper's metric names are those of neuralmagic's lm-evaluation-harness branch llama_3.1_instruct; "
        "exact_match / strict_match is their counterpart in lm-eval 0.4.",
        *footnotes.lines(),
    ]
    panels = [
        Panel(pd.DataFrame(settings), "(a) Prompt and metric"),
        Panel(pd.DataFrame(runs), "(b) What was run"),
    ]
    return Table("tableB1", f"{title}: settings of each task (paper's Table B.1)", pd.DataFrame(values), panels, notes)


def _record_of(task: str, scores: Mapping[tuple[str, str], Record]) -> Record | None:
    records = {variant: record for (name, variant), record in scores.items() if name == task}
    described = {variant: _described(record) for variant, record in records.items()}
    for variant, description in described.items():
        if description != next(iter(described.values())):
            raise UserError(
                f"task {task} was not run in one way: {variant} and {next(iter(described))} differ in settings"
            )
    return next(iter(records.values()), None)


def _described(record: Record) -> tuple:
    settings = record["settings"]
    names = ("task", "version", "filter", "chat_template", "fewshot_as_multiturn", "generation", "limit")
    return tuple(repr(record.get(name)) for name in ("metric", "shots", "n", "seed")) + tuple(
        repr(settings.get(name)) for name in names
    )


def _values(task: str, entry: Mapping[str, Any], record: Record | None, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV; empty cells are settings that were not recorded."""
    record = record or {"status": "unavailable", "reason": "not measured", "settings": {}}
    ok, settings = record["status"] == "ok", record["settings"]
    generation = settings.get("generation") or {}
    shots = theirs.get("shots")
    return {
        "task": task,
        "title": entry["title"],
        "status": record["status"],
        "reason": record.get("reason"),
        "shots": record.get("shots", entry.get("shots")),
        "shots_published": None if shots is None else int(shots),
        "metric": record.get("metric") or entry.get("metric") or MISSING,
        "filter": settings.get("filter"),
        "metric_published": theirs.get("metric"),
        "chat_template": settings.get("chat_template"),
        "fewshot_as_multiturn": settings.get("fewshot_as_multiturn"),
        "output_type": settings.get("output_type"),
        "max_gen_toks": generation.get("max_gen_toks"),
        "n": record.get("n") if ok else None,
        "n_total": record.get("n_total") if ok else None,
        "seed": record.get("seed") if ok else None,
        "fewshot_examples": settings.get("fewshot"),
        "lm_eval_task": settings.get("task") or entry.get("task") or MISSING,
        "lm_eval_version": settings.get("version"),
        "data_source": describe_source(record.get("data_source")) if record.get("data_source") else MISSING,
        "prompt_example": settings.get("prompt_example"),
    }


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
