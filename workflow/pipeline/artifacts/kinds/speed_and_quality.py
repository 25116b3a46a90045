"""Speed beside quality: every speed-up with the quality of the same checkpoint."""

from __future__ import annotations

from pipeline.artifacts.columns import Column, Line, grid, models, table
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files
from pipeline.artifacts.records import Record
from pipeline.artifacts.scored import Row, Scored, closeness_columns, rows
from pipeline.artifacts.serving import BASELINE, Case, Cell, length_label, read_serving
from pipeline.artifacts.table import Footnotes, Table
from swiftkv.errors import UserError

_IDENTITY = ("name", "kind", "id", "revision", "resolved")
_SPEC = ("num_hidden_layers", "num_key_value_layers", "key_value_group_size", "num_key_value_heads", "own_key_values")
_DUMMY = "the speed is that of dummy weights of the same shape, not of the scored checkpoint"


def _check(config: Config, entry: Entry) -> None:
    """Refuse variants that are only served: they have no quality."""
    for variant, _ in entry["cases"]:
        if config.variants[variant].merge_all_layers:
            raise UserError(f"artifacts.{entry['name']}: variant {variant!r} can only be served, so it has no quality")


def make(entry: Entry, files: Files) -> Table:
    """One row a case: speed-up and its limit at every point, then KL, agreement, perplexity and average score."""
    serving, scored = read_serving(entry, files, "throughput"), Scored(rows(entry, files), entry["tasks"])
    footnotes = Footnotes()
    lines, printed = [], []
    for row in scored.rows:
        case, quality = Case(row.variant, row.kv_cache), row.close() | scored.average(row)
        cells = {point: Cell(serving, row.model["name"], point, case) for point in serving.points}
        for cell in cells.values():
            _check_same(entry, row, cell.record)
            lines.append(_line(cell, quality))
        printed.append({**row.head, "_variant": serving.label(case)} | quality | {"_cells": cells})
    speeds = [
        Column(
            f"Speed-up,\n{length_label(settings['input_tokens'])} input",
            lambda line, point=point: _speed(line["_cells"][point], footnotes),
        )
        for point, settings in entry["points"].items()
    ]
    columns = [*models(printed), Column("Variant", "_variant"), *speeds, *closeness_columns()]
    columns.append(Column("Avg.\nscore, %", "average", f".{scored.digits}f", why="_average"))
    notes = [*entry.get("notes", []), *scored.average_note()]
    panel = grid(printed, columns, footnotes)
    return table(entry, lines, [panel], notes, footnotes, serving.heading)


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


def _speed(cell: Cell, footnotes: Footnotes) -> str:
    record, bound = cell.record, cell.record.limit()
    if record.throughput is None:
        return f"{record.blank} {footnotes.mark(record.why)}"
    if cell.speedup is None:
        return f"{cell.base.blank} {footnotes.mark('the baseline, against which it would be, has no value')}"
    text = cell.times + (f" (limit {bound:.2f}×)" if bound and cell.case != BASELINE else "")
    return text + (f" {footnotes.mark(_DUMMY)}" if record.dummy else "")


def _line(cell: Cell, quality: Line) -> Line:
    """A line of the CSV: one case at one point, with the quality of its checkpoint."""
    record, head = cell.record, cell.head(cell.record.throughput)
    return {
        **{key: head[key] for key in ("model", "title", "variant", "kv_cache", "point")},
        "input_tokens": cell.settings["input_tokens"],
        "status": record.status,
        "weights": record.weights,
        "tokens_per_second": record.throughput,
        **cell.speedups,
        **quality,
        "missing": head["reason"],
    }


KIND = ArtifactKind(
    "table",
    ("models", "variants", "points", "tasks"),
    ("serving", "scores", "fidelity"),
    make,
    extra=_check,
)
