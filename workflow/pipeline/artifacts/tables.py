"""Make tables: select the numbers of the frame that an entry shows, arrange them in grids, and print them."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.artifacts import Content, Entry, Files, Row, derived
from pipeline.artifacts.entry import columns
from pipeline.artifacts.frame import MERGED, in_bits
from pipeline.artifacts.labels import case_label, point_label
from pipeline.artifacts.metrics import (
    AT_CHANCE,
    IN_NOISE,
    METRICS,
    MISSING,
    NONE,
    OOM,
    show,
    show_interval,
)
from pipeline.artifacts.published import Numbers
from pipeline.artifacts.records import Case
from pipeline.artifacts.writers import Footnotes, Grid, Table
from pipeline.text import enumeration

_COMPUTED = "computed from the published scores of the averaged tasks"
_GUESSED = "no 95 % interval of this column lies above the score of guessing: it does not rank variants"
Panel = Content


class Shown(Numbers):
    """The numbers of an entry, printed as cells of its grids."""

    def __init__(self, entry: Entry, files: Files) -> None:
        super().__init__(entry, files)
        self.lines = derived.lines(entry)
        cases = [*dict.fromkeys(line.case for line in self.lines if line.case.model is not None)]
        # A record may have the baseline's numbers too, of turns that both took.
        others = dict.fromkeys(map(Case._make, self.rows[list(Case._fields)].to_numpy()))
        self.lines[:0] = [derived.Line(case) for case in others if case not in cases]
        self.several = len({line.case.model for line in self.lines}) > 1
        self.with_fp8 = any(line.case.kv_cache == "fp8" for line in self.lines)
        formats = {record.settings["dtype"] for record in self.records if "dtype" in record.settings}
        self.cache_format = formats.pop() if len(formats) == 1 else "bfloat16"
        if self.with_fp8 and self.cache_format == "float32":
            self.notes.append("Reductions, ratios and memory limits count float32 numbers as 16-bit ones.")
        self.titles = {model["name"]: model["title"] for model in entry["models"]}
        self.tasks = entry["tasks"]
        self.accuracies = derived.accuracies(entry)
        self.footnotes = Footnotes()
        by_case = derived.by_case(self.records)
        self.averaged = derived.averaged(entry, cases, by_case)
        self.add(derived.derived_rows(entry, cases, by_case, self.averaged))
        errors = self.rows[self.rows["metric"].isin(self.accuracies) & (self.rows["against"] == "")]["stderr"]
        # Of an accuracy: a second digit says nothing on a small subset.
        self.digits = 1 if errors.max() >= 1 and self.published.empty else 2

    def metrics(self, panel: Panel) -> list[str]:
        """Return the metrics and tasks of a panel's columns."""
        bits = [task for task in self.tasks if task not in self.accuracies]
        sets = {"tasks": list(self.tasks), "accuracies": self.accuracies, "bits": bits}
        return [metric for name in panel["columns"] for metric in sets.get(name, [name])]

    def header(self, metric: str) -> str:
        """Return the header of a column; for a task with its shots and questions, and a mark if it is at chance."""
        rows, chance = self.of(metric), self._chance(metric)
        guessing = chance is not None and rows["low"][rows["against"] == ""].max() <= chance
        last = [f"{AT_CHANCE} {self.footnotes.mark(_GUESSED)}"] if guessing else []
        if metric in METRICS:
            return "\n".join([METRICS[metric].header, *last])
        task, sizes = self.tasks[metric], "/".join(f"{size:,.0f}" for size in sorted(rows["n"].dropna().unique()))
        parts = [
            task["title"],
            "bits a byte" * in_bits(task["metric"]),
            f"{task['shots']}-shot",
            sizes and f"n = {sizes}",
        ]
        return "\n".join([*filter(None, parts), *last])

    def leading(self, case: Case, variant: str) -> dict[str, str]:
        """Return the leading cells: model if there are several, variant, and KV-cache format if there are both."""
        cells = {"Model": self.titles.get(case.model, MISSING)} if self.several else {}
        cells["Variant"] = variant
        if self.with_fp8:
            cells["KV cache"] = "FP8" if case.kv_cache == "fp8" else self.cache_format
        return cells

    def interval(self, row: Row, sign: str = "") -> str:
        """Print a value with its interval."""
        metric = row["metric"]
        form = METRICS[metric].form if metric in METRICS else ".3f"
        form = f".{self.digits}f" if metric == "average" or metric in self.accuracies else form
        return show_interval(row["value"], row["low"], row["high"], sign + form)

    def cell(self, case: Case, metric: str, point: str = "", at: float | None = None) -> str:
        """Print a number, or the reason of a gap."""
        row, mark = self.find(case, metric, point, at), self.footnotes.mark
        if row is None:
            reason = self.entry["unmeasured"].get(case.model, {}).get(case.variant) or "not measured"
            return f"{MISSING} {mark(reason if case.model else 'no model of this scale plays this role')}"
        if row["status"] != "ok":
            return f"{OOM if row['status'] == 'oom' else MISSING} {mark(row['reason'])}"
        if row["text"] or row["value"] is None:
            return row["text"] or NONE
        # Merge-all-Layers saves no FLOPs, only memory.
        limited = metric == "speedup" and case.variant not in ("baseline", MERGED)
        limit = limited and self.value(case, "speedup_limit", point)
        limit_text = f" (limit {show(limit, '.2f|×')})" if limit else ""
        return f"{IN_NOISE} " * self._is_chance(row) + self.interval(row) + limit_text

    def _chance(self, metric: str) -> float | None:
        """Return the score of guessing in percent, of an accuracy or of the average; None if it is unknown."""
        tasks = self.averaged if metric == "average" else [metric]
        settings = [self.tasks[task] for task in tasks if task in self.tasks]
        chances = [each.get("chance") for each in settings if not in_bits(each["metric"])]
        return 100 * sum(chances) / len(chances) if chances and None not in chances else None

    def _is_chance(self, row: Row) -> bool:
        """Return True if the interval of an accuracy or of an average holds the score of guessing."""
        chance = self._chance(row["metric"])
        return chance is not None and row["low"] is not None and row["low"] <= chance <= row["high"]

    def published_cell(self, case: Case, metric: str, point: str = "") -> str:
        """Print a published number; an average is over the same tasks as the measured one."""
        row = self.find(case, "acrosskv" if metric == "kv_cache_reduction_percent" else metric, point, published=True)
        averaged = self.averaged or self.accuracies
        if metric == "average" and (not row or row["n"] not in (0, len(averaged))):
            scores = [self.find(case, task, published=True) for task in averaged]
            values = [score["value"] if score else None for score in scores]
            if not values or None in values:
                return MISSING
            digits = max(len(score["text"].partition(".")[2]) for score in scores)
            return f"{sum(values) / len(values):.{digits}f} {self.footnotes.mark(_COMPUTED)}"
        if row and metric == "prefill_reduction_percent":
            return f"{row['value']:g}%" if row["value"] else NONE
        return row["text"] if row else MISSING if point or metric in self.tasks else ""


def make(entry: Entry, files: Files) -> Table:
    """Make the table of an entry of kind table."""
    return print_panels(Shown(entry, files))


def print_panels(shown: Shown) -> Table:
    """Print the panels of an entry."""
    entry, printed = shown.entry, []
    printers = {
        "measured": _measured, "differences": _differences, "statements": _statements,
        "points": _by_point,
    }  # fmt: skip
    for panel in entry["panels"]:
        grid = printers[panel.get("rows", "measured")](shown, panel)
        if len(grid.frame):
            printed.append((grid, panel.get("caption")))
    grids = [
        grid._replace(caption=f"({letter}) {caption or ''}".rstrip() if len(printed) > 1 else caption)
        for letter, (grid, caption) in zip(string.ascii_lowercase, printed, strict=False)
    ]
    notes = [*shown.notes]
    if shown.averaged and "average" in columns(entry):
        notes.append(f"Avg.: mean over {enumeration([shown.tasks[task]['title'] for task in shown.averaged])}.")
    notes += [METRICS[name].note for name in dict.fromkeys(columns(entry)) if name in METRICS and METRICS[name].note]
    notes += shown.footnotes.lines()
    return Table(shown.data, grids, notes)


def _measured(shown: Shown, panel: Panel) -> Grid:
    """Return a row a variant, and below it the published row if it has a number of the panel."""
    entry, metrics = shown.entry, shown.metrics(panel)
    places = [place for metric in metrics for place in _places(shown, metric)]
    scores = {metric for metric in metrics if metric not in METRICS or METRICS[metric].measure != "spec"}
    in_words = entry["points"] or not entry["tasks"]
    lines, rows = [], []
    for line in shown.lines:
        case = line.case
        name = case_label(entry, case.variant) if in_words else case.variant
        lines.append(line)
        rows.append(shown.leading(case, name) | {header: shown.cell(case, *place) for header, *place in places})
        published = shown.published[(shown.published[list(Case._fields)] == list(case)).all(axis=1)]
        if set(published["metric"]) & scores:
            lines.append(line)
            marks = [shown.footnotes.mark(note) for note in [*filter(None, published["reason"])][:1]]
            cells = {header: shown.published_cell(case, metric) for header, metric, *_ in places}
            rows.append(shown.leading(case, " ".join(["published", *marks])) | cells)
    return _grid(shown, lines, rows)


def _places(shown: Shown, metric: str) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield header, metric, point and axis value of a metric's columns: one for each point and its batch sizes or rates."""
    rows, header = shown.of(metric), shown.header(metric)
    points = list(shown.entry["points"]) if (rows["point"] != "").any() else [""]
    for point in points:
        values = sorted(rows["at"][rows["point"] == point].dropna().unique()) or [None]
        latency = point and shown.entry["points"][point]["measure"] == "latency"
        label = "{:g} requests/s" if latency else "batch of {:,.0f}"
        for at in values:
            parts = [f"{header},", label.format(at)] if len(values) > 1 else [header]
            parts += [point_label(shown.entry, point)] if len(points) > 1 else []
            yield "\n".join(parts), metric, point, at


def _grid(shown: Shown, lines: Sequence[derived.Line], rows: Sequence[Mapping[str, str]]) -> Grid:
    """Return a grid with rules between models, below the baseline and before AcrossKV, and the headings of parts."""

    def block(case: Case) -> tuple[Any, ...]:
        if shown.with_fp8:
            return case.model, case.variant
        spec = shown.entry["specs"].get(case.model, {}).get(case.variant)
        return case.model, spec is None, (spec or {}).get("key_value_group_size", 1) > 1

    headings, rules = {}, []
    for place, line in enumerate(lines):
        before = lines[place - 1] if place else None
        if line.part and (before is None or before.part != line.part):
            headings[place] = line.part
        elif before is not None and block(before.case) != block(line.case):
            rules.append(place)
    return Grid(pd.DataFrame(rows), None, rules, headings)


def _by_point(shown: Shown, panel: Panel) -> Grid:
    """Return a row a model and point, a column a variant; the published row below if the same hardware ran."""
    entry, (metric,), rows = shown.entry, panel["columns"], []
    for model in entry["models"]:
        cases = {case_label(entry, *variant): Case(model["name"], *variant) for variant in entry["cases"]}
        for point in entry["points"]:
            ways = {point_label(entry, point): shown.cell}
            if any(shown.find(case, metric, point, published=True) for case in cases.values()):
                ways["published"] = shown.published_cell
            leading = {"Model": model["title"]} if shown.several else {}
            for name, way in ways.items():
                cells = {header: way(case, metric, point) for header, case in cases.items()}
                rows.append({**leading, "": name, **cells})
    return Grid(pd.DataFrame(rows))


def _differences(shown: Shown, panel: Panel) -> Grid:
    """Return a row a variant that shares questions or chats with its reference."""
    differences = {}
    for line in shown.lines:
        if other := derived.reference(line, shown.lines):
            cells = {metric: shown.find(line.case, metric, against=other) for metric in shown.metrics(panel)}
            if any(cells.values()):
                differences[line, other] = cells
    metrics = [metric for metric in shown.metrics(panel) if any(cells[metric] for cells in differences.values())]
    rows = []
    for (line, other), cells in differences.items():
        leading = shown.leading(line.case, line.case.variant) | {"against": other.variant}
        rows.append(leading | {shown.header(metric): _difference(shown, cells[metric]) for metric in metrics})
    return _grid(shown, [line for line, _ in differences], rows)


def _difference(shown: Shown, row: Row | None) -> str:
    if row is None:
        return MISSING
    noise = row["low"] is None or row["low"] <= 0 <= row["high"]
    return " ".join(filter(None, [IN_NOISE * noise, shown.interval(row, "+"), row["text"]]))


def _statements(shown: Shown, panel: Panel) -> Grid:
    """Return the statements of the sources about this artifact and the models that ran."""
    rows = []
    for row in shown.published.to_dict("records"):
        if row["file"].endswith("values.csv") and row["model"]:
            mark = f" {shown.footnotes.mark(row['reason'])}" if row["reason"] else ""
            title = shown.titles[row["model"]]
            rows.append({"Model": title, "Statement": row["text"] + mark, "Source": row["conditions"]})
    return Grid(pd.DataFrame(rows))
