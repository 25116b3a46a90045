"""How each task was really run, beside what the paper says: Table B.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.artifacts.columns import Column, Line, grid, table
from pipeline.artifacts.kind import ArtifactKind, Entry, Files
from pipeline.artifacts.records import MISSING, Record, read_published, read_records
from pipeline.artifacts.table import Footnotes, Table
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


def make(entry: Entry, files: Files) -> Table:
    """Two panels, (a) prompt and metric and (b) what was run, one row a task.

    Where the entry has several variants the first one with a score is shown.
    """
    records = read_records(entry, files.get("scores", ()), "score")
    case = entry["models"][0]["name"], *entry["cases"][0]
    published = {row["task"]: row for row in read_published(files.get("published", ()))}
    footnotes = Footnotes()
    lines = [
        _line(task, configured, _record_of(task, records) or records.find(*case, task), published.get(task, {}))
        for task, configured in entry["tasks"].items()
    ]
    settings = [
        Column("Task", "title"),
        Column("Shots", "shots"),
        Column("Shots\n(paper)", "shots_published"),
        Column("Metric", _metric),
        Column("Metric (paper)", "metric_published"),
        Column("Chat\ntemplate", "chat_template", _yes),
        Column("Few-shot as\nmulti-turn", "fewshot_as_multiturn", _yes),
    ]
    runs = [
        Column("Task", "title"),
        Column(
            "lm-eval task",
            lambda line: line["lm_eval_task"] + (f" (v{line['lm_eval_version']})" if line["lm_eval_version"] else ""),
        ),
        Column("Generation\nlimit", _limit),
        Column("Questions", lambda line: f"{line['n']:,} of {line['n_total']:,}" if line["n"] else None, why="reason"),
        Column("Seed", "seed"),
        Column("Few-shot examples", "fewshot_examples"),
        Column("Data", "data_source"),
    ]
    panels = [
        grid(lines, settings, footnotes, "(a) Prompt and metric"),
        grid(lines, runs, footnotes, "(b) What was run"),
    ]
    return table(entry, lines, panels, entry.get("notes", []), footnotes)


def _record_of(task: str, records: Iterable[Record]) -> Record | None:
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


def _line(task: str, configured: Mapping[str, Any], record: Record, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV; empty cells are settings that were not recorded."""
    settings, shots = record.settings, theirs.get("shots")
    return {
        "task": task,
        "title": configured["title"],
        "status": record.status if record.exists else "unavailable",
        "reason": None if record.ok else record.why,
        "shots": settings.get("shots", configured["shots"]),
        "shots_published": None if shots is None else int(shots),
        "metric": settings.get("metric") or configured["metric"],
        "filter": settings.get("filter"),
        "metric_published": theirs.get("metric"),
        "chat_template": settings.get("chat_template"),
        "fewshot_as_multiturn": settings.get("fewshot_as_multiturn"),
        "output_type": settings.get("output_type"),
        "max_gen_toks": (settings.get("generation") or {}).get("max_gen_toks"),
        "n": record.value("n"),
        "n_total": record.value("n_total"),
        "seed": settings.get("seed") if record.ok else None,
        "fewshot_examples": settings.get("fewshot"),
        "lm_eval_task": settings.get("lm_eval_task") or configured["task"],
        "lm_eval_version": settings.get("version"),
        "data_source": _source(record.data) if record.data else MISSING,
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


def _limit(line: Line) -> str | None:
    if line["output_type"] is None:
        return None
    if line["output_type"] != "generate_until":
        return "–"
    return f"{line['max_gen_toks']:,}" if line["max_gen_toks"] else "lm-eval's default"


def _metric(line: Line) -> str:
    return line["metric"] + (f" / {line['filter']}" if line["filter"] not in (None, "none") else "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


KIND = ArtifactKind("table", ("models", "variants", "tasks"), ("scores",), make, exactly={"models": 1})
