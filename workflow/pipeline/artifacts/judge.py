"""Judging claims: a verdict on the quantity that a claim makes of artifacts' numbers, by its measured 95 % interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts import flops
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
    Claim,
    Scene,
    Unmeasured,
)  # fmt: skip
from pipeline.artifacts.frame import interval, read_frame
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import show_interval
from pipeline.artifacts.published import Case
from pipeline.artifacts.records import PROJECT
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
    """A verdict with the quantity, or the text that was measured in its place, and the reason."""

    verdict: str
    found: Estimate | None = None
    text: str = ""
    models: Sequence[str] = ()
    reason: str = ""


def judge(claim: Claim, scene: Scene) -> Verdict:
    """The verdict on a claim; never certain without a measured interval.

    * agrees: on the claim's own case, or by arithmetic, the value is as stated.
    * same direction: the whole interval lies within the claim's weaker form.
    * other direction: the whole interval lies outside of the weaker form.
    * undecided: neither, or nothing was measured twice.
    * not measured: with the reason.

    Where the paper's benchmarks are at chance, an average is that of the panel; without one, the claim is undecided.
    """
    if claim.how in _ARITHMETIC:
        found, models = exact(_ARITHMETIC[claim.how](*claim.of)), [one for one in claim.of if one in MODELS.values()]
        return Verdict(AGREES if _inside(found, claim.stated) else OTHER, found, "", models, "by arithmetic")
    try:
        judged = _judged(claim, scene)
        if not any(map(scene.at_chance, claim.cells)):
            return judged
    except Unmeasured as reason:
        return Verdict(UNMEASURED, reason=str(reason))
    try:
        judged = _judged(claim._replace(of=[{**cell, "artifact": PANEL} for cell in claim.cells]), scene)
        why = "so the panel judges"
    except Unmeasured as reason:
        judged, why = judged._replace(verdict=UNDECIDED), str(reason)
    return judged._replace(reason=f"the paper's benchmarks are at chance here, {why}; {judged.reason}")


def _judged(claim: Claim, scene: Scene) -> Verdict:
    models = scene.players(claim)
    rows, differs = zip(*(scene.rows(claim, cell) for cell in claim.cells), strict=True)
    remarks = list(dict.fromkeys(itertools.chain(*differs)))
    own = not remarks
    if claim.how == "status":
        text, chosen = _only(rows[0])["status"], "a limit" in "".join(remarks)
        if chosen:
            remarks.append("the limit was chosen")
        verdict = UNDECIDED if chosen else OTHER if text != claim.stated else AGREES if own else SAME
        return Verdict(verdict, None, text, models, "; ".join(remarks))
    if claim.weaker is None and not own or claim.own and any("requests" not in sentence for sentence in remarks):
        raise Unmeasured(f"needs the stated case: {'; '.join(remarks)}")
    found, *falls = _quantities(claim, scene, rows, remarks)
    inside = {_inside(one, claim.weaker or claim.stated) for one in (found, *falls)}
    verdict = OTHER if inside == {False} else UNDECIDED
    if inside == {True}:
        verdict = AGREES if own and _as_stated(found, claim.stated) else SAME
    if own:
        remarks.append("on the claim's own case")
    if found.low is None:
        remarks.append("measured once, so without an interval")
    return Verdict(verdict, found, "", models, "; ".join(remarks))


def _inside(found: Estimate, wanted: Bounds | str) -> bool | None:
    """Whether an interval lies within bounds; None where it reaches over one of them, or there is none."""
    low, high = map(float, wanted)
    if found.low is None or found.high is None:
        return None
    if low <= found.low and found.high <= high:
        return True
    return False if found.high < low or high < found.low else None


def _as_stated(found: Estimate, stated: Bounds | str) -> bool:
    """Whether a value lies within the stated bounds, or its interval, of 5 % at most, does in part."""
    near = (found.high or math.inf) - (found.low or 0) <= 2 * NEAR * abs(found.value)
    return bool(_inside(exact(found.value), stated)) or near and _inside(found, stated) is None


# Quantities


def _quantities(claim: Claim, scene: Scene, rows: Sequence[pd.DataFrame], remarks: list[str]) -> list[Estimate]:
    """Estimate what a claim makes of its rows, of one that rises also its deepest fall."""
    if claim.how == "rises":
        return _rises(rows[0], remarks)
    if claim.how in ("most", "least"):
        values = rows[0]["value"]
        return [interval(rows[0].loc[values.idxmax() if claim.how == "most" else values.idxmin()])]
    each = [interval(_only(one)) for one in rows]
    if claim.how == "ratio":
        return [independent_ratio(*each)]
    while len(each) > 1:  # a difference, or that of two
        pairs = range(0, len(each), 2)
        each = [_paired(scene, *claim.cells[at : at + 2]) or _less(*each[at : at + 2]) for at in pairs]
    return each


def _only(rows: pd.DataFrame) -> pd.Series:
    if len(rows) > 1:
        raise Unmeasured(f"there are {len(rows)} such numbers")
    return rows.iloc[0]


def _paired(scene: Scene, *cells: Mapping[str, Any]) -> Estimate | None:
    """The difference on the same questions or chats; None where the artifact has none."""
    table = scene.table(cells[0]["artifact"])
    names = [name for cell in cells for name in (scene.roles[cell["role"]]["name"], cell["variant"], cell["kv_cache"])]
    keys = [*Case._fields, "against_model", "against", "against_kv_cache", "metric"]
    found = table[(table[keys] == [*names, cells[0]["metric"]]).all(axis=1)]
    return interval(found.iloc[0]) if len(found) else None


def _less(first: Estimate, second: Estimate) -> Estimate:
    """A difference of two independent estimates, from the halves of their intervals."""
    value = first.value - second.value
    if None in (first.low, first.high, second.low, second.high):
        return Estimate(value)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, None, value - below, value + above)


def _rises(rows: pd.DataFrame, remarks: list[str]) -> list[Estimate]:
    """The last along the axis less the first, and the deepest clear fall between any two."""
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


# What follows from the dimensions of the stated models


@cache
def _dimensions(model: str) -> Dimensions:
    return Dimensions.from_config(read_json(PROJECT / f"resources/architectures/{model}.json")["config"])


def _spec(model: str, ordinary: int, group: int = 1) -> SwiftKVSpec:
    return SwiftKVSpec(_dimensions(model).num_hidden_layers, ordinary, group)


def _relative_flops(model: str, ordinary: int, group: int, source: str, other: str = "", length: int = 131072) -> float:
    """Percent of the FLOPs of the baseline, or of another model, as the source counts and rounds them in Table 1."""
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


def with_settings(table: pd.DataFrame, points: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Add `SETTINGS` of the serving points as columns."""
    return table.join(pd.DataFrame.from_dict(points, orient="index").reindex(columns=SETTINGS), on="point")


def make(entry: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Table:
    """Return a grid a section, a line a claim: the sentence, its verdict, the stated and the measured number."""
    tables = {file.stem: with_settings(read_frame(file), entry["points"]) for file in files["tables"]}
    scene = Scene(tables, *(entry[name] for name in ("roles", "shown_by", "absent", "chances")))
    lines = pd.DataFrame(_line(about, claim, judge(claim, scene)) for about in SECTIONS for claim in SECTIONS[about])
    grids = [
        Grid(part[[*COLUMNS]].rename(columns=COLUMNS), about) for about, part in lines.groupby("about", sort=False)
    ]
    return Table(entry["name"], heading(entry), lines, grids)


def _line(about: str, claim: Claim, judged: Verdict) -> dict[str, Any]:
    """A line of the CSV."""
    stated = claim.stated if isinstance(claim.stated, str) else _bounds(claim.stated)
    unit, weaker = claim.unit and f" {claim.unit}", f"\n({_bounds(claim.weaker)})" if claim.weaker else ""
    value, _, low, high = judged.found or (None,) * 4
    measured = judged.text if value is None else show_interval(value, low, high, "s3") + unit
    models = ", ".join(judged.models)
    return {
        "id": claim.id, "about": about, "text": claim.text, "place": claim.place, "verdict": judged.verdict,
        "value": value, "low": low, "high": high, "unit": claim.unit,
        "bounds": f"{stated}{unit}{weaker}",
        "measured": f"{measured}\n{models}".strip(), "model": models, "reason": judged.reason, "note": claim.note,
    }  # fmt: skip


def _bounds(wanted: Bounds) -> str:
    low, high = (f"{bound:,.10g}" for bound in wanted)
    return f"≥ {low}" if high == "inf" else f"≤ {high}" if low == "-inf" else " to ".join(dict.fromkeys([low, high]))
