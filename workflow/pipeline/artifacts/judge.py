"""Judging claims: a verdict on the quantity that a claim makes of artifacts' numbers, by its measured 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts import claims, flops
from pipeline.artifacts.claims import AGREES, CONTRADICTS, UNDECIDED, UNMEASURED, Arithmetic, Bounds, Claim
from pipeline.artifacts.evidence import KEYS, NEAR, Evidence, Scene, Unmeasured
from pipeline.artifacts.labels import heading
from pipeline.artifacts.metrics import NONE, show
from pipeline.artifacts.records import PROJECT
from pipeline.artifacts.writers import Column, Footnotes, Table, print_grid
from pipeline.statistics import Estimate, exact
from swiftkv.cost import Dimensions, kv_bytes_per_token, prefill_flops
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

LENGTH = 131072  # tokens of Table 1


class Verdict(NamedTuple):
    """A verdict with the quantity, whether its value is as stated, and the reason.

    Attributes:
        differs: the model, setting and requests in place of the claim's own; empty where they are its own.
    """

    verdict: str
    found: Estimate | None = None
    as_stated: bool | None = None
    text: str = ""
    models: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    reason: str = ""


def judge(claim: Claim, scene: Scene) -> Verdict:
    """The verdict on a claim; never certain without a measured interval.

    * agrees: the whole interval lies within the claim's weaker form, and on its own case the value is as stated.
    * contradicts: the whole interval lies outside of the weaker form.
    * undecided: neither, or nothing was measured twice.
    * not measured: with the reason.
    """
    if isinstance(claim.quantity, Arithmetic):
        found = exact(_ARITHMETIC[claim.quantity.what](*claim.quantity.arguments))
        inside = _inside(found, claim.stated)
        title = claim.quantity.arguments[0]
        return Verdict(
            AGREES if inside else CONTRADICTS, found, inside is True, models=(title,), reason="by arithmetic"
        )
    try:
        return _judged(claim, Evidence(claim, scene))
    except Unmeasured as reason:
        return Verdict(UNMEASURED, reason=str(reason))


def _judged(claim: Claim, picked: Evidence) -> Verdict:
    found, text = picked.quantity()
    differs = tuple(dict.fromkeys(picked.differs()))
    more = {"models": picked.titles, "differs": differs}
    said = [*differs, *picked.remarks]
    if isinstance(claim.stated, str):
        same = text == claim.stated
        chosen = any(sentence.startswith("a limit") for sentence in differs)
        verdict = UNDECIDED if chosen else AGREES if same else CONTRADICTS
        said += ["the limit was chosen so that it comes out"] if chosen and same else []
        return Verdict(verdict, None, same, text, reason="; ".join(said), **more)
    assert found is not None
    stated = _as_stated(found, claim.stated)
    if differs and (claim.weaker is None or (claim.own and any("requests" not in sentence for sentence in differs))):
        needs = " and ".join(dict.fromkeys(claims.MODELS[cell.role] for cell in claims.cells(claim)))
        return Verdict(UNMEASURED, found, stated, reason="; ".join([f"needs {needs} as stated", *said]), **more)
    inside = _inside(found, claim.weaker or claim.stated)
    verdict = {True: AGREES, False: CONTRADICTS, None: UNDECIDED}[inside]
    if inside is None and found.low is None:
        said.append("measured once, so without an interval")
    if verdict == AGREES and not differs and not stated:
        verdict = UNDECIDED
        said.append("the direction is as stated, the value is not")
    return Verdict(verdict, found, stated, reason="; ".join(said), **more)


def _inside(found: Estimate, wanted: Bounds | str) -> bool | None:
    """Whether an interval lies within bounds; None where it reaches over one of them, or there is none."""
    low, high = (-math.inf if wanted[0] is None else wanted[0], math.inf if wanted[1] is None else wanted[1])
    if found.low is None or found.high is None:
        return None
    if low <= found.low and found.high <= high:
        return True
    return False if found.high < low or high < found.low else None


def _as_stated(found: Estimate, stated: Bounds) -> bool:
    """Whether a value lies within the stated bounds, or its interval, of 5 % at most, does in part."""
    if _inside(Estimate(found.value, None, found.value, found.value), stated):
        return True
    known = found.low is not None and found.high is not None
    return known and found.high - found.low <= 2 * NEAR * abs(found.value) and _inside(found, stated) is None


# What follows from the dimensions of the stated models


@cache
def _dimensions(model: str) -> Dimensions:
    return Dimensions.from_config(read_json(PROJECT / f"resources/architectures/{model}.json")["config"])


def _spec(model: str, ordinary: int, group: int = 1) -> SwiftKVSpec:
    return SwiftKVSpec(_dimensions(model).num_hidden_layers, ordinary, group)


def _prefill_reduction(model: str, ordinary: int) -> float:
    return 100 * _spec(model, ordinary).prefill_reduction


def _relative_flops(model: str, ordinary: int, group: int, source: str) -> float:
    """Percent of the baseline's FLOPs, counted and rounded as the source does."""
    arch = _dimensions(model)
    totals = [
        flops.counted(flops.published_gflops(arch, spec, LENGTH), source, rounded=True)["total"]
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
    "prefill_reduction": _prefill_reduction,
    "relative_flops": _relative_flops,
    "flops_ratio": _flops_ratio,
    "cache_reduction": _cache_reduction,
}


def make(entry: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Table:
    """Return a grid a section, a line a claim: the sentence, its verdict, the stated and the measured number."""
    words = {name: str for name in ("source", *KEYS, "point", "metric", "against_model", "against", "against_kv_cache",
                                    "text", "status", "reason", "conditions")}  # fmt: skip
    tables = {
        file.stem: pd.read_csv(file, dtype=words, keep_default_na=False, na_values={}) for file in files["tables"]
    }
    for table in tables.values():
        numbers = ["at", "value", "stderr", "low", "high", "n"]
        table[numbers] = table[numbers].apply(pd.to_numeric)
    given = {name: entry[name] for name in ("roles", "points", "shown_by", "absent", "stand_ins")}
    scene, footnotes, lines = Scene(tables, **given), Footnotes(), []
    first: dict[Any, Claim] = {}
    for about, group in claims.SECTIONS.items():
        for claim in group:
            found = judge(claim, scene)
            same = first.setdefault(found.found[:1] if found.found else claim.id, claim)
            lines.append(_line(about, claim, found, None if same is claim else same.id))
    columns = [
        Column("Claim", lambda line: line["text"]),
        Column("Verdict", lambda line: _marked(line, footnotes)),
        Column("As\nstated", lambda line: NONE if line["as_stated"] is None else "yes" if line["as_stated"] else "no"),
        Column("Stated\n(weaker form)", lambda line: line["bounds"]),
        Column("Measured", lambda line: line["measured"]),
        Column("Place", lambda line: line["place"]),
    ]
    grids = [
        print_grid(columns, [line for line in lines if line["about"] == about], caption=about)
        for about in claims.SECTIONS
    ]
    notes = [*entry.get("notes", []), *footnotes.lines()]
    return Table(entry["name"], heading(entry), pd.DataFrame(lines), grids, notes)


def _marked(line: Mapping[str, Any], footnotes: Footnotes) -> str:
    said = [line[name] for name in ("reason", "note") if line[name]]
    return " ".join([line["verdict"], *map(footnotes.mark, said)])


def _line(about: str, claim: Claim, found: Verdict, same_as: str | None) -> dict[str, Any]:
    """A line of the CSV; `same_as` is the first claim that is judged by the same number."""
    stated = claim.stated if isinstance(claim.stated, str) else _bounds(claim.stated)
    bounds = " ".join(filter(None, [stated, claim.unit])) + (f"\n({_bounds(claim.weaker)})" if claim.weaker else "")
    value = found.found or Estimate(None)  # type: ignore[arg-type]
    measured = found.text
    if found.found:
        ends = "" if value.low in (None, value.high) else f" [{show(value.low, 's3')}, {show(value.high, 's3')}]"
        measured = " ".join(filter(None, [show(value.value, "s3") + ends, claim.unit]))
    measured += f"\n{', '.join(found.models)}" if found.models and measured else ""
    return {
        "id": claim.id,
        "about": about,
        "text": claim.text,
        "place": claim.place,
        "verdict": found.verdict,
        "as_stated": found.as_stated,
        "value": value.value,
        "low": value.low,
        "high": value.high,
        "unit": claim.unit,
        "bounds": bounds,
        "measured": measured,
        "model": ", ".join(found.models),
        "differs": "; ".join(found.differs),
        "same_as": same_as,
        "reason": found.reason,
        "note": claim.note,
    }


def _bounds(wanted: Bounds) -> str:
    low, high = (None if bound is None else f"{bound:,.10g}" for bound in wanted)
    return f"{low} to {high}" if low and high else f"≥ {low}" if low else f"≤ {high}"
