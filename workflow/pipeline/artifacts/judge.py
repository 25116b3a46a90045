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
    CONTRADICTS,
    MODELS,
    NEAR,
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
from pipeline.artifacts.metrics import NONE, show
from pipeline.artifacts.published import Case
from pipeline.artifacts.records import PROJECT
from pipeline.artifacts.writers import Footnotes, Grid, Table
from pipeline.statistics import Estimate, exact, independent_ratio
from swiftkv.cost import Dimensions, kv_bytes_per_token, prefill_flops
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

LENGTH = 131072  # tokens of Table 1


class Verdict(NamedTuple):
    """A verdict with the quantity, whether its value is as stated, and the reason."""

    verdict: str
    found: Estimate | None = None
    as_stated: bool | None = None
    text: str = ""
    models: Sequence[str] = ()
    reason: str = ""


def judge(claim: Claim, scene: Scene) -> Verdict:
    """The verdict on a claim; never certain without a measured interval.

    * agrees: the whole interval lies within the claim's weaker form, and on its own case the value is as stated.
    * contradicts: the whole interval lies outside of the weaker form.
    * undecided: neither, or nothing was measured twice.
    * not measured: with the reason.
    """
    if claim.how in _ARITHMETIC:
        found = exact(_ARITHMETIC[claim.how](*claim.of))
        inside = _inside(found, claim.stated) is True
        return Verdict(AGREES if inside else CONTRADICTS, found, inside, "", claim.of[:1], reason="by arithmetic")
    try:
        return _judged(claim, scene)
    except Unmeasured as reason:
        return Verdict(UNMEASURED, reason=str(reason))


def _judged(claim: Claim, scene: Scene) -> Verdict:
    models = scene.players(claim)
    picked = [scene.rows(claim, cell) for cell in claim.cells]
    rows = [each for each, _ in picked]
    differs = list(dict.fromkeys(sentence for _, sentences in picked for sentence in sentences))
    if claim.how == "status":
        text = _only(claim, rows, 0)["status"]
        same, chosen = text == claim.stated, any(sentence.startswith("a limit") for sentence in differs)
        said = [*differs, *(["the limit was chosen so that it comes out"] if chosen and same else [])]
        verdict = UNDECIDED if chosen else AGREES if same else CONTRADICTS
        return Verdict(verdict, None, same, text, models, "; ".join(said))
    remarks: list[str] = []
    found = _quantity(claim, scene, rows, remarks)
    stated, said = _as_stated(found, claim.stated), [*differs, *remarks]
    if differs and (claim.weaker is None or (claim.own and any("requests" not in sentence for sentence in differs))):
        needs = " and ".join(dict.fromkeys(MODELS[cell["role"]] for cell in claim.cells))
        said, verdict = [f"needs {needs} as stated", *said], UNMEASURED
    else:
        inside = _inside(found, claim.weaker or claim.stated)
        verdict = {True: AGREES, False: CONTRADICTS, None: UNDECIDED}[inside]
        if inside is None and found.low is None:
            said.append("measured once, so without an interval")
        if verdict == AGREES and not differs and not stated:
            verdict = UNDECIDED
            said.append("the direction is as stated, the value is not")
    return Verdict(verdict, found, stated, "", models, "; ".join(said))


def _inside(found: Estimate, wanted: Bounds | str) -> bool | None:
    """Whether an interval lies within bounds; None where it reaches over one of them, or there is none."""
    low, high = (-math.inf if wanted[0] is None else wanted[0], math.inf if wanted[1] is None else wanted[1])
    if found.low is None or found.high is None:
        return None
    if low <= found.low and found.high <= high:
        return True
    return False if found.high < low or high < found.low else None


def _as_stated(found: Estimate, stated: Bounds | str) -> bool:
    """Whether a value lies within the stated bounds, or its interval, of 5 % at most, does in part."""
    if _inside(exact(found.value), stated):
        return True
    known = found.low is not None and found.high is not None
    return known and found.high - found.low <= 2 * NEAR * abs(found.value) and _inside(found, stated) is None


# Quantities


def _quantity(claim: Claim, scene: Scene, rows: Sequence[pd.DataFrame], remarks: list[str]) -> Estimate:
    """The estimate of what a claim makes of its rows; remarks on it are added."""
    how = claim.how
    if how == "cell":
        return interval(_only(claim, rows, 0))
    if how in ("minus", "ratio"):
        each = [interval(_only(claim, rows, place)) for place in range(len(rows))]
        if how == "ratio":
            return independent_ratio(*each)
        apart = [
            _paired(scene, *claim.cells[place : place + 2]) or _less(*each[place : place + 2])
            for place in range(0, len(each), 2)
        ]
        if claim.kl and (closer := _paired(scene, *claim.cells[:2], metric="kl")):
            value, low, high = (show(number, "+.3f") for number in (closer.value, closer.low, closer.high))
            remarks.append(f"KL to the teacher, which is ours, differs by {value} ({low} to {high})")
        return apart[0] if len(apart) == 1 else _less(*apart)
    if how == "rises":
        return _rises(claim, rows[0], remarks)
    values = rows[0]["value"]
    if len(values) > 1:
        remarks.append(f"the {'largest' if how == 'most' else 'smallest'} of {len(values)}")
    return interval(rows[0].loc[values.idxmax() if how == "most" else values.idxmin()])


def _only(claim: Claim, rows: Sequence[pd.DataFrame], place: int) -> pd.Series:
    if len(rows[place]) > 1:
        raise Unmeasured(f"{claim.cells[place]['artifact']} has {len(rows[place])} such numbers")
    return rows[place].iloc[0]


def _paired(scene: Scene, *cells: Mapping[str, Any], metric: str = "") -> Estimate | None:
    """The difference on the same questions or chats; None where the artifact has none."""
    table = scene.table(cells[0]["artifact"])
    first, second = ([scene.roles[cell["role"]]["name"], cell["variant"], cell["kv_cache"]] for cell in cells)
    keys = [*Case._fields, "against_model", "against", "against_kv_cache", "metric"]
    found = table[(table[keys] == [*first, *second, metric or cells[0]["metric"]]).all(axis=1)]
    return interval(found.iloc[0]) if len(found) else None


def _less(first: Estimate, second: Estimate) -> Estimate:
    """A difference of two independent estimates, from the halves of their intervals."""
    value = first.value - second.value
    if None in (first.low, first.high, second.low, second.high):
        return Estimate(value)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, None, value - below, value + above)


def _rises(claim: Claim, rows: pd.DataFrame, remarks: list[str]) -> Estimate:
    """The last along the axis less the first; where it clearly falls between any two, that fall."""
    axis = rows["at" if rows["at"].notna().all() else "input_tokens"]
    if axis.nunique() < 2:
        raise Unmeasured(f"{claim.cells[0]['artifact']} has {claim.cells[0]['metric']} at one place only")
    ordered = [interval(row) for _, row in rows.assign(axis=axis).sort_values("axis").iterrows()]
    steps = (_less(after, before) for before, after in itertools.combinations(ordered, 2))
    if falls := [step for step in steps if step.high is not None and step.high < 0]:
        remarks.append(f"falls between {len(falls)} pairs of places, by {show(-min(falls).value, 's2')} at most")
        return min(falls)
    return _less(ordered[-1], ordered[0])


# What follows from the dimensions of the stated models


@cache
def _dimensions(model: str) -> Dimensions:
    return Dimensions.from_config(read_json(PROJECT / f"resources/architectures/{model}.json")["config"])


def _spec(model: str, ordinary: int, group: int = 1) -> SwiftKVSpec:
    return SwiftKVSpec(_dimensions(model).num_hidden_layers, ordinary, group)


def _relative_flops(model: str, ordinary: int, group: int, source: str) -> float:
    """Percent of the baseline's FLOPs, counted and rounded as the source does."""
    totals = [
        flops.counted(flops.published_gflops(_dimensions(model), spec, LENGTH), source, rounded=True)["total"]
        for spec in (_spec(model, ordinary, group), None)
    ]
    return 100 * totals[0] / totals[1]


def _flops_ratio(model: str, ordinary: int, other: str, tokens: int) -> float:
    first = prefill_flops(_dimensions(model), _spec(model, ordinary), tokens)
    return sum(first.values()) / sum(prefill_flops(_dimensions(other), None, tokens).values())


def _cache_reduction(model: str, ordinary: int, group: int, fp8: bool) -> float:
    arch, dtype = _dimensions(model), "fp8" if fp8 else "bfloat16"
    return 100 * (1 - kv_bytes_per_token(arch, _spec(model, ordinary, group), dtype) / kv_bytes_per_token(arch, None))


_ARITHMETIC = {
    "prefill_reduction": lambda model, ordinary: 100 * _spec(model, ordinary).prefill_reduction,
    "relative_flops": _relative_flops,
    "flops_ratio": _flops_ratio,
    "cache_reduction": _cache_reduction,
}


# The table


def with_settings(table: pd.DataFrame, points: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Add `SETTINGS` of the serving points as columns; total_tokens are those of all repeats."""
    settings = pd.DataFrame.from_dict(points, orient="index").reindex(columns=[*SETTINGS, "repeats"])
    settings["total_tokens"] *= settings.pop("repeats").fillna(1)
    return table.join(settings, on="point")


def make(entry: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Table:
    """Return a grid a section, a line a claim: the sentence, its verdict, the stated and the measured number."""
    tables = {file.stem: with_settings(read_frame(file), entry["points"]) for file in files["tables"]}
    scene = Scene(tables, *(entry[name] for name in ("roles", "shown_by", "absent", "stand_ins")))
    footnotes, lines, grids = Footnotes(), [], []
    for about, claims in SECTIONS.items():
        printed = []
        for claim in claims:
            found = judge(claim, scene)
            line = _line(about, claim, found)
            lines.append(line)
            printed.append({
                "Claim": line["text"],
                "Verdict": " ".join([line["verdict"], *map(footnotes.mark, filter(None, (line["reason"], line["note"])))]),
                "As\nstated": {None: NONE, True: "yes", False: "no"}[line["as_stated"]],
                "Stated\n(weaker form)": line["bounds"],
                "Measured": line["measured"],
                "Place": line["place"],
            })  # fmt: skip
        grids.append(Grid(pd.DataFrame(printed), about))
    notes = [*entry.get("notes", []), *footnotes.lines()]
    return Table(entry["name"], heading(entry), pd.DataFrame(lines), grids, notes)


def _line(about: str, claim: Claim, found: Verdict) -> dict[str, Any]:
    """A line of the CSV."""
    stated = claim.stated if isinstance(claim.stated, str) else _bounds(claim.stated)
    bounds = " ".join(filter(None, [stated, claim.unit])) + (f"\n({_bounds(claim.weaker)})" if claim.weaker else "")
    value, _, low, high = found.found or (None,) * 4
    measured = found.text
    if value is not None:
        ends = "" if low in (None, high) or high == math.inf else f" [{show(low, 's3')}, {show(high, 's3')}]"
        measured = " ".join(filter(None, ["≥" * (high == math.inf), show(value, "s3") + ends, claim.unit]))
    measured += f"\n{', '.join(found.models)}" if found.models and measured else ""
    return {
        "id": claim.id, "about": about, "text": claim.text, "place": claim.place, "verdict": found.verdict,
        "as_stated": found.as_stated, "value": value, "low": low, "high": high, "unit": claim.unit, "bounds": bounds,
        "measured": measured, "model": ", ".join(found.models),
        "reason": found.reason, "note": claim.note,
    }  # fmt: skip


def _bounds(wanted: Bounds) -> str:
    low, high = (None if bound is None else f"{bound:,.10g}" for bound in wanted)
    return f"{low} to {high}" if low and high else f"≥ {low}" if low else f"≤ {high}"
