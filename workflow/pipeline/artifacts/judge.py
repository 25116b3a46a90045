"""Judge claims: estimate the quantity of each from artifacts, and decide by its measured 95 % interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pipeline.artifacts import Content, Entry, Files, Row, flops
from pipeline.artifacts.claims import (
    AGREES,
    MODELS,
    NEAR,
    OTHER,
    PANEL,
    SAME,
    SECTIONS,
    SETTINGS,
    UNDECIDED,
    UNMEASURED,
    Bounds,
    Cell,
    Claim,
    Results,
    Unmeasured,
)  # fmt: skip
from pipeline.artifacts.frame import interval, read_frame
from pipeline.artifacts.metrics import METRICS, show_interval
from pipeline.artifacts.records import PROJECT, Case
from pipeline.artifacts.writers import Grid, Table
from pipeline.statistics import Estimate, exact, independent_ratio
from swiftkv.cost import Dimensions
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

COLUMNS = {
    "text": "Claim", "verdict": "Verdict", "bounds": "Stated\n(weaker form)", "measured": "Measured", "reason": "Why",
    "note": "Note", "place": "Place",
}  # fmt: skip


class Verdict(NamedTuple):
    """A verdict with the measured quantity, or the measured status as text, and the reason.

    `orientation` is the verdict that another model than the claim's gives.
    """

    verdict: str
    quantity: Estimate | None = None
    text: str = ""
    models: Sequence[str] = ()
    reason: str = ""
    orientation: str = ""


def judge(claim: Claim, results: Results) -> Verdict:
    """Judge a claim; the verdict is never certain without a measured interval.

    * confirmed: on the stated case, or by arithmetic, the value is as stated.
    * points the same way: the whole interval lies within the claim's weaker form.
    * does not hold here: the whole interval lies outside of the weaker form.
    * unclear: neither, or nothing was measured twice, or what holds for several cases was measured in one.
    * not tested: with the reason; of a claim about another model than the measured one, with the verdict of that one.
    """
    judged = _judge(claim, results)
    if judged.verdict == UNMEASURED or not claim.cells or not results.on_another_model(claim):
        return judged
    return judged._replace(verdict=UNMEASURED, orientation=judged.verdict)


def _judge(claim: Claim, results: Results) -> Verdict:
    """Judge a claim by the models that ran.

    If the paper's benchmarks are at chance, an average is that of the panel; without a panel, the claim is unclear.
    """
    if claim.arguments:
        value = exact(_ARITHMETIC[claim.how](*claim.arguments))
        models = [each for each in claim.arguments if each in MODELS.values()]
        return Verdict(AGREES if _inside(value, claim.stated) else OTHER, value, "", models, "by arithmetic")
    try:
        verdict = _judge_measured(claim, results)
        if not any(map(results.at_chance, claim.cells)):
            return verdict
    except Unmeasured as reason:
        return Verdict(UNMEASURED, reason=str(reason))
    try:
        on_panel = claim._replace(of=[{**cell, "artifact": PANEL} for cell in claim.cells])
        verdict, why = _judge_measured(on_panel, results), "so the panel judges"
    except Unmeasured as reason:
        verdict, why = verdict._replace(verdict=UNDECIDED), str(reason)
    return verdict._replace(reason=f"the paper's benchmarks are at chance here, {why}; {verdict.reason}")


def _judge_measured(claim: Claim, results: Results) -> Verdict:
    models = results.titles(claim)
    rows, deviations = zip(*(results.rows(claim, cell) for cell in claim.cells), strict=True)
    remarks = list(dict.fromkeys(itertools.chain(*deviations)))
    own = not remarks
    if claim.how == "status":
        text, chosen = _only(rows[0])["status"], "a limit" in "".join(remarks)
        if chosen:
            remarks.append("the limit was chosen")
        verdict = UNDECIDED if chosen else OTHER if text != claim.stated else AGREES if own else SAME
        return Verdict(verdict, None, text, models, "; ".join(remarks))
    if claim.weaker is None and not own or claim.own and any("requests" not in sentence for sentence in remarks):
        raise Unmeasured(f"needs the stated case: {'; '.join(remarks)}")
    quantity, *falls = _quantities(claim, results, rows, remarks)
    inside = {_inside(each, claim.weaker or claim.stated) for each in (quantity, *falls)}
    verdict = OTHER if inside == {False} else UNDECIDED
    if claim.how == "least" and len(rows[0]) == 1:
        remarks.append("measured in one of several cases")
    elif inside == {True}:
        verdict = AGREES if own and _as_stated(quantity, claim.stated) else SAME
    if own:
        remarks.append("on the claim's own case")
    if claim.unit == "%" and quantity.value > 100:
        remarks.append(METRICS[claim.cells[0]["metric"]].note)
    if quantity.low is None:
        remarks.append("measured once, so without an interval")
    return Verdict(verdict, quantity, "", models, "; ".join(remarks))


def _inside(quantity: Estimate, bounds: Bounds | str) -> bool | None:
    """Return whether an interval lies within bounds; None if it overlaps one of them, or there is no interval."""
    least, most = map(float, bounds)
    _, _, low, high = quantity
    if low is None or high is None:
        return None
    if least <= low and high <= most:
        return True
    return False if high < least or most < low else None


def _as_stated(quantity: Estimate, stated: Bounds | str) -> bool:
    """Return True if a value lies within the stated bounds, or its interval overlaps them and is narrow (5 %)."""
    narrow = (quantity.high or math.inf) - (quantity.low or 0) <= 2 * NEAR * abs(quantity.value)
    return bool(_inside(exact(quantity.value), stated)) or narrow and _inside(quantity, stated) is None


# Quantities


def _quantities(claim: Claim, results: Results, rows: Sequence[pd.DataFrame], remarks: list[str]) -> list[Estimate]:
    """Estimate the quantity of a claim from its rows, for `rises` also the deepest fall, and for `each` the others."""
    if claim.how == "rises":
        return _rises(rows[0], remarks)
    if claim.how in ("most", "least"):
        column = rows[0]["value"]
        return [interval(rows[0].loc[column.idxmax() if claim.how == "most" else column.idxmin()])]
    values = [interval(_only(each)) for each in rows]
    if claim.how == "each":
        remarks += [f"also {show_interval(other.value, other.low, other.high, 's2')}" for other in values[1:]]
        return values
    if claim.how == "ratio":
        return [independent_ratio(*values)]
    while len(values) > 1:  # a difference, or that of two
        pairs = range(0, len(values), 2)
        values = [_paired(results, *claim.cells[at : at + 2]) or _less(*values[at : at + 2]) for at in pairs]
    return values


def _only(rows: pd.DataFrame) -> pd.Series:
    if len(rows) > 1:
        raise Unmeasured(f"there are {len(rows)} such numbers")
    return rows.iloc[0]


def _paired(results: Results, *cells: Cell) -> Estimate | None:
    """Return the difference on the same questions or chats; None if the artifact has none."""
    table, roles = results.table(cells[0]["artifact"]), results.roles
    names = [name for cell in cells for name in (roles[cell["role"]]["name"], cell["variant"], cell["kv_cache"])]
    keys = [*Case._fields, "against_model", "against", "against_kv_cache", "metric"]
    rows = table[(table[keys] == [*names, cells[0]["metric"]]).all(axis=1)]
    return interval(rows.iloc[0]) if len(rows) else None


def _less(first: Estimate, second: Estimate) -> Estimate:
    """Subtract two independent estimates, by the halves of their intervals."""
    value = first.value - second.value
    if None in (first.low, first.high, second.low, second.high):
        return Estimate(value)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, None, value - below, value + above)


def _rises(rows: pd.DataFrame, remarks: list[str]) -> list[Estimate]:
    """Return the last value along the axis less the first, and the deepest clear fall between any two if there is one."""
    axis = "depth" if rows["at"].notna().all() else "input_tokens"
    ordered = [(interval(row), row[axis]) for _, row in rows.sort_values(axis).iterrows()]
    if len(ordered) < 2:
        raise Unmeasured("measured at one place only")
    whole, pairs = _less(ordered[-1][0], ordered[0][0]), itertools.combinations(ordered, 2)
    fall, start, end = min((_less(after, before), start, end) for (before, start), (after, end) in pairs)
    if fall.low is None or fall.high is None or fall.high >= 0:
        return [whole]
    text = show_interval(-fall.value, -fall.high, -fall.low, "s2")
    remarks.append(f"falls by {text} from {start:,.0f} to {end:,.0f} {'% of ' * (axis == 'depth')}{axis}")
    return [whole, fall]


# Arithmetic on the dimensions of the stated models


@cache
def _dimensions(model: str) -> Dimensions:
    return Dimensions.from_config(read_json(PROJECT / f"resources/architectures/{model}.json")["config"])


def _spec(model: str, ordinary: int, group: int = 1) -> SwiftKVSpec:
    return SwiftKVSpec(_dimensions(model).num_hidden_layers, ordinary, group)


def _relative_flops(model: str, ordinary: int, group: int, source: str, other: str = "", length: int = 131072) -> float:
    """Return the FLOPs as percent of the baseline's or another model's, counted and rounded as in the source's Table 1."""
    totals = [
        flops.counted(flops.published_gflops(_dimensions(name), spec, length), source, rounded=True)["total"]
        for name, spec in ((model, _spec(model, ordinary, group)), (other or model, None))
    ]
    return 100 * totals[0] / totals[1]


_ARITHMETIC = {
    "layers": lambda model: _dimensions(model).num_hidden_layers,
    "prefill_reduction": lambda model, ordinary: 100 * _spec(model, ordinary).prefill_reduction,
    "relative_flops": _relative_flops,
    "cache_reduction": lambda bits, *spec: 100 - (100 - 100 * _spec(*spec).kv_cache_reduction(1)) * bits / 16,
}


# The table


def with_settings(table: pd.DataFrame, points: Mapping[str, Content]) -> pd.DataFrame:
    """Add `SETTINGS` of the serving points as columns."""
    return table.join(pd.DataFrame.from_dict(points, orient="index").reindex(columns=SETTINGS), on="point")


def make(entry: Entry, files: Files) -> Table:
    """Return a grid a section, a line a claim: the sentence, its verdict, the stated and the measured number."""
    drawn = {Path(file).stem: with_settings(read_frame(file), entry["points"]) for file in files["tables"]}
    tables = {name: drawn[other] for name, other in entry["shown_by"].items() if other in drawn}
    results = Results(tables, *(entry[name] for name in ("roles", "absent", "chances", "stand_ins")))
    lines = pd.DataFrame(_line(about, claim, judge(claim, results)) for about in SECTIONS for claim in SECTIONS[about])
    grids = [
        Grid(part[[*COLUMNS]].rename(columns=COLUMNS), about) for about, part in lines.groupby("about", sort=False)
    ]
    return Table(lines, grids)


def _line(about: str, claim: Claim, judged: Verdict) -> Row:
    """Return a line of the CSV."""
    stated = claim.stated if isinstance(claim.stated, str) else _bounds(claim.stated)
    unit, weaker = claim.unit and f" {claim.unit}", f"\n({_bounds(claim.weaker)})" if claim.weaker else ""
    value, _, low, high = judged.quantity or (None,) * 4
    measured = judged.text if value is None else show_interval(value, low, high, "s3") + unit
    models = ", ".join(judged.models)
    orientation = f", for orientation: {judged.orientation}" if judged.orientation else ""
    return {
        "id": claim.id, "about": about, "text": claim.text, "place": claim.place, "verdict": judged.verdict,
        "orientation": judged.orientation,
        "value": value, "low": low, "high": high, "unit": claim.unit,
        "bounds": f"{stated}{unit}{weaker}",
        "measured": f"{measured}\n{models}{orientation}".strip(), "model": models, "reason": judged.reason, "note": claim.note,
    }  # fmt: skip


def _bounds(bounds: Bounds) -> str:
    low, high = (f"{bound:,.10g}" for bound in bounds)
    return f"≥ {low}" if high == "inf" else f"≤ {high}" if low == "-inf" else " to ".join(dict.fromkeys([low, high]))
