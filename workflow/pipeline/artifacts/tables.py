"""Tables of rows and columns: which numbers of the frame an entry shows, in which grids, and how each is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts import quality
from pipeline.artifacts.entry import columns
from pipeline.artifacts.frame import Row, in_bits
from pipeline.artifacts.labels import heading, label, point_label
from pipeline.artifacts.metrics import IN_NOISE, METRICS, MISSING, NONE, OOM, enumeration, show, show_interval
from pipeline.artifacts.published import Case, Entry, Files, Numbers, case_of, number, read_csv
from pipeline.artifacts.quality import Line
from pipeline.artifacts.records import provenance
from pipeline.artifacts.writers import Column, Footnotes, Grid, Table, print_grid

_DUMMY = "the speed is that of dummy weights of the same shape, not of the scored checkpoint"
_COMPUTED = "computed from the published scores of the averaged tasks"


class Shown(Numbers):
    """The numbers of an entry, and how its grids print them."""

    def __init__(self, entry: Entry, files: Files) -> None:
        super().__init__(entry, files)
        quality.check_questions(entry, self.records)
        self.lines = quality.lines(entry)
        self.several = len({line.case.model for line in self.lines}) > 1
        self.titles = {model["name"]: model["title"] for model in entry["models"]}
        self.footnotes = Footnotes()
        self.add(quality.derived(entry, self.records))
        found = quality.by_case(self.records)
        cases = dict.fromkeys(line.case for line in self.lines if line.case.model is not None)
        self.averaged = quality.averaged(entry, list(cases), found)
        errors = self.rows[self.rows["metric"].isin(self.accuracies) & (self.rows["against"] == "")]["stderr"]
        # Of an accuracy: a second digit says nothing on a small subset.
        self.digits = 1 if errors.max() >= 1 and self.published.empty else 2

    @property
    def accuracies(self) -> list[str]:
        """The tasks that are not in bits per byte."""
        return quality.accuracies(self.entry)

    def form(self, metric: str) -> str:
        """How a metric, a task or an average is printed."""
        if metric == "average" or metric in self.accuracies:
            return f".{self.digits}f"
        return METRICS[metric].form if metric in METRICS else ".3f"

    def tasks(self, name: str) -> list[str]:
        """The tasks that a column of a panel stands for; none where it is a metric."""
        accuracies = self.accuracies
        sets = {"tasks": list(self.entry.get("tasks", {})), "accuracies": accuracies}
        sets["bits"] = [task for task in sets["tasks"] if task not in accuracies]
        return sets.get(name, [])

    def header(self, metric: str) -> str:
        """The header of a column; a task's has its shots and questions."""
        if metric in METRICS:
            return METRICS[metric].header
        asked = self.entry["tasks"][metric]
        rows = self.rows[self.rows["metric"] == metric]
        sizes = sorted(rows["n"].dropna().unique())
        parts = [asked["title"], *(["bits a byte"] if in_bits(asked["metric"]) else []), f"{asked['shots']}-shot"]
        return "\n".join(parts + ([f"n = {'/'.join(f'{size:,.0f}' for size in sizes)}"] if sizes else []))

    def missing(self, case: Case) -> str:
        """A cell of a number that was not measured, with the reason."""
        if case.model is None:
            return f"{MISSING} {self.footnotes.mark('no model of this scale plays this role')}"
        reason = self.entry["unmeasured"].get(case.model, {}).get(case.variant) or "not measured"
        return f"{MISSING} {self.footnotes.mark(reason)}"

    def text(self, row: Row | None, case: Case) -> str:
        """Print a number, or the reason of a gap."""
        if row is None:
            return self.missing(case)
        if row["status"] != "ok":
            return f"{OOM if row['status'] == 'oom' else MISSING} {self.footnotes.mark(row['reason'])}"
        if row["text"]:
            return row["text"]
        if row["value"] is None:
            return NONE
        text = show_interval(row["value"], row["low"], row["high"], self.form(row["metric"]))
        return f"{IN_NOISE} {text}" if self._is_chance(row) else text

    def _is_chance(self, row: Row) -> bool:
        """Whether the interval of an accuracy, or of an average, holds the score of guessing."""
        tasks = self.averaged if row["metric"] == "average" else [row["metric"]]
        settings = [self.entry.get("tasks", {}).get(task) for task in tasks]
        chances = [each.get("chance") for each in settings if each and not in_bits(each["metric"])]
        if not chances or None in chances or row["low"] is None:
            return False
        return row["low"] <= 100 * sum(chances) / len(chances)

    def difference(self, row: Row | None, *, better: bool = False) -> str:
        """Print a difference; with `better`, positive is better also in bits per byte."""
        if row is None:
            return MISSING
        value, low, high = (row[name] for name in ("value", "low", "high"))
        if better and row["unit"] == "bits/byte":
            value, low, high = 0 - value, low and -high, high and -low
        text = show_interval(value, low, high, f"+{self.form(row['metric'])}")
        noise = f"{IN_NOISE} " if low is None or low <= 0 <= high else ""
        return noise + text + (f" {row['text']}" if row["text"] else "")


def make(entry: Entry, files: Files) -> Table:
    """The grids of an entry of kind table."""
    return print_panels(Shown(entry, files), files)


def print_panels(shown: Shown, files: Files, title: str | None = None) -> Table:
    """Return the table of an entry's panels; its title is `heading`'s where none is given."""
    entry, grids = shown.entry, []
    printers = {
        "measured": _by_point if any(panel.get("across") for panel in entry["panels"]) else _measured,
        "differences": _differences,
        "orders": _orders,
        "statements": _statements,
    }
    for panel in entry["panels"]:
        rows = panel.get("rows", "measured")
        grid = _cards(shown, files) if rows == "cards" else printers[rows](shown, panel)
        if len(grid.frame):
            grids.append(grid._replace(caption=panel.get("caption")))
    if len(grids) > 1:
        grids = [grid._replace(caption=f"({'abcdefg'[place]}) {grid.caption}") for place, grid in enumerate(grids)]
    notes = [*entry.get("notes", []), *provenance(shown.records)]
    if shown.averaged and "average" in columns(entry):
        notes.append(f"Avg.: mean over {enumeration([entry['tasks'][task]['title'] for task in shown.averaged])}.")
    notes += shown.footnotes.lines()
    return Table(entry["name"], title or heading(entry), shown.data, grids, notes)


class _Printed(NamedTuple):
    """A printed row: one of ours, or the published one below it."""

    line: Line
    theirs: bool = False


def _measured(shown: Shown, panel: Mapping[str, Any]) -> Grid:
    """A row a variant, with the published row below where the panel has a published number of it."""
    columns = [*_names(shown, words="points" in shown.entry or "tasks" not in shown.entry)]
    for name in panel["columns"]:
        columns += [_task(shown, task) for task in shown.tasks(name)] or _metric(shown, name)
    metrics = [metric for name in panel["columns"] for metric in shown.tasks(name) or [name]]
    scores = {metric for metric in metrics if metric not in METRICS or METRICS[metric].measure != "spec"}
    rows: list[_Printed] = []
    for line in _with_answers(shown, panel):
        rows.append(_Printed(line))
        theirs = shown.published[(shown.published[["model", "variant", "kv_cache"]] == list(line.case)).all(axis=1)]
        if set(theirs["metric"]) & scores:
            rows.append(_Printed(line, True))
    return print_grid(columns, rows, **_rules(shown, rows))


def _with_answers(shown: Shown, panel: Mapping[str, Any]) -> list[Line]:
    """The rows of an entry; before them the baseline, where only records of other variants have its numbers."""
    own = {line.case for line in shown.lines}
    answered = shown.rows[shown.rows["metric"].isin(panel["columns"]) & (shown.rows["variant"] == "baseline")]
    extra = [
        case for case in dict.fromkeys(map(case_of, answered.to_dict("records"))) if case not in own and case.model
    ]
    return [*(Line(case) for case in extra if "points" in shown.entry), *shown.lines]


def _names(shown: Shown, *, words: bool = False) -> list[Column]:
    """The leading columns: model where there are several, variant, and KV-cache format where there are both."""
    entry = shown.entry

    def variant(row: _Printed) -> str:
        if row.theirs:
            notes = shown.published[
                (shown.published[["model", "variant", "kv_cache"]] == list(row.line.case)).all(axis=1)
            ]
            note = next(iter(notes["reason"][notes["reason"] != ""]), "")
            return "published" + (f" {shown.footnotes.mark(note)}" if note else "")
        return label(entry, row.line.case.variant) if words else row.line.case.variant

    columns = [Column("Variant", variant)]
    if shown.several:
        columns.insert(0, Column("Model", lambda row: shown.titles.get(row.line.case.model, MISSING)))
    if any(line.case.kv_cache == "fp8" for line in shown.lines):
        titles = {"auto": "bfloat16", "fp8": "FP8"}
        columns.append(Column("KV cache", lambda row: titles[row.line.case.kv_cache]))
    return columns


def _task(shown: Shown, task: str) -> Column:
    def cell(row: _Printed) -> str:
        found = shown.find(row.line.case, task, theirs=row.theirs)
        return MISSING if found is None and row.theirs else shown.text(found, row.line.case)

    return Column(shown.header(task), cell)


def _metric(shown: Shown, metric: str) -> list[Column]:
    """The column of a metric; several where it has several points, batch sizes or the like."""
    rows = shown.rows[shown.rows["metric"] == metric]
    points = list(shown.entry.get("points", {})) if (rows["point"] != "").any() else [""]
    places = sorted(rows["at"].dropna().unique()) or [None]
    columns = []
    for point in points:
        for at in places:
            said = [shown.header(metric)] if len(places) == 1 else [f"{shown.header(metric)},", f"batch of {at:,.0f}"]
            said += [point_label(shown.entry, point)] if len(points) > 1 else []
            columns.append(
                Column("\n".join(said), lambda row, point=point, at=at: _cell(shown, row, metric, point, at))
            )
    return columns


def _cell(shown: Shown, row: _Printed, metric: str, point: str, at: float | None) -> str:
    case = row.line.case
    if row.theirs:
        return _published_cell(shown, case, metric)
    found = shown.find(case, metric, point, at)
    text = shown.text(found, case)
    if found is None or found["value"] is None:
        return text
    if metric == "speedup" and (limit := shown.find(case, "speedup_limit", point)) and case.variant != "baseline":
        text += f" (limit {show(limit['value'], '.2f|×')})"
    if "dummy" in found["conditions"] and "tasks" in shown.entry:
        text += f" {shown.footnotes.mark(_DUMMY)}"
    return text


def _published_cell(shown: Shown, case: Case, metric: str) -> str:
    """The published number of a metric; the average over the tasks that ours is over."""
    name = "acrosskv" if metric == "kv_cache_reduction_percent" else metric
    found = shown.find(case, name, theirs=True)
    if metric == "prefill_reduction_percent":
        return "" if found is None else f"{found['value']:g}%" if found["value"] else NONE
    if metric != "average":
        return found["text"] if found else ""
    averaged = shown.averaged or shown.accuracies
    scores = [shown.find(case, task, theirs=True) for task in averaged]
    if found and found["n"] in (0, len(averaged)):
        return found["text"]
    known = [score for score in scores if score is not None and score["value"] is not None]
    if not known or len(known) < len(scores):
        return MISSING
    digits = max(len(score["text"].partition(".")[2]) for score in known)
    return f"{sum(score['value'] for score in known) / len(known):.{digits}f} {shown.footnotes.mark(_COMPUTED)}"


def _rules(shown: Shown, rows: Sequence[_Printed]) -> dict[str, Any]:
    """Lines between models, below the baseline and before AcrossKV, headings of parts, and rows that belong to one above."""

    def block(row: _Printed) -> tuple[Any, ...]:
        case, specs = row.line.case, shown.entry["specs"]
        spec = specs.get(case.model, {}).get(case.variant)
        if any(line.case.kv_cache == "fp8" for line in shown.lines):
            return case.model, case.variant
        return case.model, spec is None, (spec or {}).get("key_value_group_size", 1) > 1

    headings, rules = {}, []
    for place, row in enumerate(rows):
        before = rows[place - 1] if place else None
        if row.line.part and (before is None or before.line.part != row.line.part):
            headings[place] = row.line.part
        elif before is not None and block(before) != block(row):
            rules.append(place)
    below = [place for place, row in enumerate(rows) if row.theirs]
    return {"rules": tuple(rules), "headings": headings, "below": tuple(below)}


def _by_point(shown: Shown, panel: Mapping[str, Any]) -> Grid:
    """A row a model and point, a column a variant; the published row below where the same hardware ran."""
    entry, (metric,) = shown.entry, panel["columns"]
    cases = [tuple(case) for case in entry["cases"] if metric != "speedup" or case[0] != "baseline"]
    rows = []
    for model in entry["models"]:
        for point in entry["points"]:
            rows.append((model, point, False))
            theirs = shown.published[(shown.published["model"] == model["name"]) & (shown.published["point"] == point)]
            if metric in set(theirs["metric"]):
                rows.append((model, point, True))

    def cell(row: tuple[Any, str, bool], variant: str, kv_cache: str) -> str:
        model, point, theirs = row
        case = Case(model["name"], variant, kv_cache)
        if theirs:
            found = shown.find(case, metric, point, theirs=True)
            return found["text"] if found else MISSING
        return _cell(shown, _Printed(Line(case)), metric, point, None)

    columns = [Column("", lambda row: "published" if row[2] else point_label(entry, row[1]))]
    if shown.several:
        columns.insert(0, Column("Model", lambda row: row[0]["title"]))
    columns += [Column(label(entry, *case), lambda row, case=case: cell(row, *case)) for case in cases]
    return print_grid(columns, rows, below=tuple(place for place, row in enumerate(rows) if row[2]))


class _Pair(NamedTuple):
    """A row of differences."""

    line: Line
    against: Case
    theirs: bool = False


def _differences(shown: Shown, panel: Mapping[str, Any]) -> Grid:
    """Return a row a variant that shares questions or chats with its reference."""
    pairs = [_Pair(line, other) for line in shown.lines if (other := quality.reference(line, shown.lines))]
    return _print_pairs(shown, panel, pairs)


def _orders(shown: Shown, panel: Mapping[str, Any]) -> Grid:
    """Neighbors of each order, and its two ends; positive is better."""
    cases = {line.case.variant: line for line in shown.lines if line.case.kv_cache == "auto"}
    pairs = []
    for order in shown.entry["orders"]:
        ends = [(order[0], order[-1])] if len(order) > 2 else []
        pairs += [_Pair(cases[first], cases[second].case) for first, second in [*pairwise(order), *ends]]
    return _print_pairs(shown, panel, pairs, better=True)


def _print_pairs(shown: Shown, panel: Mapping[str, Any], pairs: Sequence[_Pair], *, better: bool = False) -> Grid:
    def find(pair: _Pair, metric: str) -> Row | None:
        """The difference; that of the other direction with its sign turned."""
        if found := shown.find(pair.line.case, metric, against=pair.against):
            return found
        if not (found := shown.find(pair.against, metric, against=pair.line.case)):
            return None
        low, high = found["low"], found["high"]
        turned = {"low": None if high is None else -high, "high": None if low is None else -low}
        return found | {"value": 0 - found["value"]} | turned

    metrics = [metric for name in panel["columns"] for metric in shown.tasks(name) or [name]]
    metrics = [metric for metric in metrics if any(find(pair, metric) for pair in pairs)]
    pairs = [pair for pair in pairs if any(find(pair, metric) for metric in metrics)]
    columns = [*_names(shown), Column("against", lambda pair: pair.against.variant)]
    for metric in metrics:
        cell = lambda pair, metric=metric: shown.difference(find(pair, metric), better=better)  # noqa: E731
        columns.append(Column(shown.header(metric), cell))
    return print_grid(columns, pairs, **_rules(shown, [_Printed(pair.line) for pair in pairs]))


def _statements(shown: Shown, panel: Mapping[str, Any]) -> Grid:
    """Return the statements of the sources about this artifact and the models that ran."""
    stated = shown.published[shown.published["file"].str.endswith("values.csv") & (shown.published["model"] != "")]
    columns = [
        Column("Model", lambda row: shown.titles[row["model"]]),
        Column(
            "What", lambda row: METRICS[row["metric"]].header.lower() if row["metric"] in METRICS else row["metric"]
        ),
        Column(
            "Value", lambda row: _bounds(row) + (f" {shown.footnotes.mark(row['reason'])}" if row["reason"] else "")
        ),
        Column("Statement", lambda row: row["text"]),
        Column("Source", lambda row: row["conditions"]),
    ]
    return print_grid(columns, stated.to_dict("records"))


def _bounds(row: Row) -> str:
    low, high = (None if pd.isna(row[end]) else _amount(row[end]) for end in ("low", "high"))
    if low is None or high is None:
        return f"at most {high}" if low is None else f"at least {low}"
    return low if low == high else f"{low}–{high}"


def _amount(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value:g}"


def _cards(shown: Shown, files: Files) -> Grid:
    """The baseline beside scores that others published of it, and how many standard errors they are apart."""
    names = {model["published"]: model["name"] for model in shown.entry["models"]}
    rows = []
    for card in (line for file in files.get("cards", ()) for line in read_csv(file)):
        case = Case(names.get(card["model"], ""), "baseline", "auto")
        found = shown.find(case, card["task"])
        if found is None or found["value"] is None:
            continue
        apart = (found["value"] - number(card["value"])) / found["stderr"] if found["stderr"] else None
        asked = [card["tool"], f"{card['shots']}-shot", *([card["metric"]] if card["metric"] else [])]
        rows.append({
            "Task": shown.entry["tasks"][card["task"]]["title"],
            "Here": shown.text(found, case),
            "Published": card["value"],
            "Apart,\nstandard errors": MISSING if apart is None else f"{apart:+.1f}",
            "Published with": ", ".join(asked),
            "Settings": f"differ: {card['differs']}" if card["differs"] else "agree",
            "Source": card["source"],
        })  # fmt: skip
    return Grid(pd.DataFrame(rows))
