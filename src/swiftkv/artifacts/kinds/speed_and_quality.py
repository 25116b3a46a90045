"""Speed beside quality: every speed-up with the quality of the same checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from swiftkv.artifacts import files as paths
from swiftkv.artifacts.columns import Column
from swiftkv.artifacts.kind import Config, Entry, Files, Kind
from swiftkv.artifacts.records import Record
from swiftkv.artifacts.scored import (
    Row,
    average_cells,
    average_note,
    averaged_tasks,
    closeness_cells,
    closeness_columns,
    decimals,
    rows,
    subsets_note,
)
from swiftkv.artifacts.serving import (
    BASELINE,
    Case,
    Serving,
    heading,
    length_label,
    ratio,
    read_serving,
)
from swiftkv.artifacts.table import Footnotes, Panel, Table
from swiftkv.errors import UserError

_IDENTITY = ("name", "kind", "id", "revision", "resolved")
_SPEC = ("num_hidden_layers", "num_key_value_layers", "key_value_group_size", "num_key_value_heads")
_DUMMY = "the speed is that of dummy weights of the same shape, not of the scored checkpoint"


def needs(config: Config, entry: Entry) -> dict[str, list[str]]:
    """Throughput, scores and fidelity of every row.

    Raises:
        UserError: a variant that is only served.
    """
    for variant, _ in entry["cases"]:
        if config["variants"][variant].get("merge_all_layers"):
            raise UserError(f"artifacts.{entry['name']}: variant {variant!r} can only be served, so it has no quality")
    return {
        "serving": paths.serving(config, entry),
        "scores": paths.scores(config, entry),
        "fidelity": paths.fidelity(config, entry),
    }


def make(entry: Entry, files: Files) -> Table:
    """One row a case: speed-up and its limit at every point, then KL, agreement, perplexity and average score.

    Raises:
        UserError: speed and quality of a row are not of the same model and rewiring.
    """
    serving, found, tasks = read_serving(entry, files, "throughput"), rows(entry, files), entry["tasks"]
    averaged, digits, footnotes = averaged_tasks(found, tasks), decimals(found, tasks), Footnotes()
    quality = [*closeness_columns(), Column("Avg.\nscore, %", "average", f".{digits}f", why="_average")]
    values, printed, rules = [], [], []
    for row in found:
        model, case = row.model["name"], Case(row.variant, row.kv_cache)
        if printed and printed[-1].get("Model", row.model["title"]) != row.model["title"]:
            rules.append(len(printed))
        cells = {"Model": row.model["title"]} if len(entry["models"]) > 1 else {}
        cells["Variant"] = serving.label(case)
        for point in serving.points:
            record = serving.find(point, model, case)
            _check_same(entry, row, record)
            values.append(_values(serving, row, point, averaged))
            cells[_point_header(serving, point)] = _speed_cell(serving, row, point, footnotes)
        line = closeness_cells(row) | average_cells(row, averaged)
        cells |= {column.header: column.cell(line, footnotes) for column in quality}
        printed.append(cells)
    notes = [
        *entry.get("notes", []),
        "Speed-up: input and output tokens a second over the baseline's, each measured once; limit: what the FLOP count "
        "of such a request allows where compute is the bottleneck.",
        "Speed and quality of a row are of one checkpoint: the same model in the same revision, rewired in the same way. "
        "KL, agreement and perplexity are on held-out chats.",
        subsets_note(found, tasks),
        *filter(None, [average_note(averaged, tasks)]),
    ]
    if any(row.kv_cache == "fp8" for row in found):
        notes.append("FP8: served with one scale a tensor (vLLM's), scored with one scale a token (Section 5.3).")
    panel = Panel(pd.DataFrame(printed), None, tuple(rules))
    return Table(entry["name"], heading(serving), pd.DataFrame(values), [panel], [*notes, *footnotes.lines()])


def _check_same(entry: Entry, row: Row, speed: Record) -> None:
    """Refuse to put a speed beside the quality of something else.

    Raises:
        UserError: another rewiring, or, unless its weights are dummies, another model, revision or training.
    """
    measured = [record for record in (*row.scores.values(), row.fidelity) if record.exists] if speed.exists else []
    for quality in measured:
        differing = [name for name in _SPEC if (speed.spec or {}).get(name) != (quality.spec or {}).get(name)]
        if not speed.dummy:
            differing += [name for name in _IDENTITY if speed.model[name] != quality.model[name]]
            differing += ["weights"] if speed.weights != quality.weights else []
        if differing:
            raise UserError(
                f"{entry['name']} would put the speed of {row.model['name']} {row.variant} beside the quality of "
                f"another checkpoint: they differ in {differing[0]}; measure both again"
            )


def _point_header(serving: Serving, point: str) -> str:
    return f"Speed-up,\n{length_label(serving.entry['points'][point]['input_tokens'])} input"


def _gain(serving: Serving, row: Row, point: str) -> float | None:
    model, case = row.model["name"], Case(row.variant, row.kv_cache)
    return ratio(
        serving.find(point, model, case).value("tokens_per_second"),
        serving.find(point, model, BASELINE).value("tokens_per_second"),
    )


def _speed_cell(serving: Serving, row: Row, point: str, footnotes: Footnotes) -> str:
    model, case = row.model["name"], Case(row.variant, row.kv_cache)
    record, gain = serving.find(point, model, case), _gain(serving, row, point)
    if record.value("tokens_per_second") is None:
        return f"{record.blank} {footnotes.mark(record.why)}"
    if gain is None:
        base = serving.find(point, model, BASELINE)
        return f"{base.blank} {footnotes.mark('the baseline, against which it would be, has no value')}"
    bound = record.limit()
    text = f"{gain:.2f}×" + (f" (limit {bound:.2f}×)" if bound and case != BASELINE else "")
    return text + (f" {footnotes.mark(_DUMMY)}" if record.dummy else "")


def _values(serving: Serving, row: Row, point: str, averaged: Sequence[str]) -> dict[str, Any]:
    """A line of the CSV: one case at one point, with the quality of its checkpoint."""
    model, case = row.model["name"], Case(row.variant, row.kv_cache)
    record, gain = serving.find(point, model, case), _gain(serving, row, point)
    bound = record.limit()
    quality = closeness_cells(row) | average_cells(row, averaged)
    return {
        "model": model,
        "title": row.model["title"],
        "variant": row.variant,
        "kv_cache": row.kv_cache,
        "point": point,
        "input_tokens": serving.entry["points"][point]["input_tokens"],
        "status": record.status,
        "weights": record.weights,
        "tokens_per_second": record.value("tokens_per_second"),
        "speedup": gain,
        "speedup_limit": bound,
        "fraction_of_limit": ratio(gain, bound),
        **{key: cell for key, cell in quality.items() if not key.startswith("_")},
        "missing": None if record.value("tokens_per_second") is not None else record.why,
    }


KIND = Kind("table", ("models", "variants", "points", "tasks"), needs, make)
