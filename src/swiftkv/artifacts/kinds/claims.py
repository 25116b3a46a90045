"""The claims of the paper and the blog post, each beside the measured cells that judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from swiftkv.artifacts.claims_file import Claim, cells, read_claims
from swiftkv.artifacts.columns import Column, Line, grid, table
from swiftkv.artifacts.inputs import CLAIMS, players
from swiftkv.artifacts.kind import ArtifactKind, Config, Entry, Files, Listed
from swiftkv.artifacts.records import read_published
from swiftkv.artifacts.table import Footnotes, Table
from swiftkv.artifacts.text import show
from swiftkv.artifacts.verdicts import VERDICTS, Measured, Scene, Verdict, judge

PROJECT = Path(__file__).parents[4]


def _of_page(config: Config, page: Mapping[str, Listed]) -> dict[str, Any]:
    """What the claims are judged on at this scale: the models by role, and artifacts and variants that are not there."""
    named = {artifact: page[artifact] for artifact in _named_artifacts() if artifact in page}
    absent = {artifact: listed.left_out for artifact, listed in named.items() if listed.left_out is not None}
    return {
        "judged_on": {artifact: listed.form for artifact, listed in named.items() if artifact not in absent},
        "absent": absent,
        "roles": {role: next(iter(players(config, [role])), None) for role in config["roles"]},
        "tasks": list(config["tasks"]),
        "stand_ins": {variant: other for variant, other in config["stand_ins"].items() if variant != other},
    }


@cache
def _named_artifacts() -> tuple[str, ...]:
    """The artifacts that claims are judged on."""
    groups = read_claims(PROJECT / CLAIMS)["claims"].values()
    return tuple(dict.fromkeys(cell["artifact"] for group in groups for claim in group for cell in cells(claim)))


def make(entry: Entry, files: Files) -> Table:
    """One line a claim: what it says and where, the value it needs, the measured one, and the verdict."""
    content = read_claims(files["claims"][0])
    scene = Scene(
        tables={file.stem: read_published([file]) for file in files["tables"]},
        roles=entry["roles"],
        models=content["models"],
        benchmarks=content["benchmarks"],
        absent=entry["absent"],
        stand_ins=entry["stand_ins"],
        tasks=entry["tasks"],
    )
    lines = [_line(title, claim, judge(claim, scene)) for title, group in content["claims"].items() for claim in group]
    footnotes = Footnotes()

    def verdict(line: Line) -> str:
        return " ".join([line["verdict"], *(footnotes.mark(line[key]) for key in ("reason", "note") if line[key])])

    columns = [
        Column("Claim", "text"),
        Column("Place", "place"),
        Column("Needed\n(in direction)", lambda line: _needed(line["_claim"])),
        Column("Measured", lambda line: line["_measured"] and _measured(line["_measured"], line["unit"])),
        Column("Verdict", verdict),
    ]
    panels = [
        grid([line for line in lines if line["about"] == title], columns, footnotes, title, lambda line: None)
        for title in content["claims"]
    ]
    counts = {name: sum(line["verdict"] == name for line in lines) for name in VERDICTS}
    notes = [
        f"{len(lines)} claims: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count) + ".",
        "holds, does not hold: to the digits stated, on the model and hardware the claim is about. holds in direction, does "
        "not hold here: the claim's weaker form (in brackets), or measured on another model or other hardware. undecided: "
        "the error bar of two standard errors reaches over the bound. Errors of two cells are taken as independent. Of speed, "
        "sustained rates have their bracket and what was measured in turns the scatter of the turns; weaker forms ask for 5 %.",
        *entry.get("notes", []),
    ]
    return table(entry, lines, panels, notes, footnotes)


def _needed(claim: Claim) -> str:
    """The values with which a claim holds, and below them those of its weaker form."""
    needed = " ".join(filter(None, [_bounds(claim["holds"]), claim.get("unit")]))
    return f"{needed}\n({_bounds(claim['direction'])})" if "direction" in claim else needed


def _bounds(bounds: str | Sequence[float | None]) -> str:
    if isinstance(bounds, str):
        return bounds
    low, high = (None if bound is None else f"{bound:,.10g}" for bound in bounds)
    return f"{low} to {high}" if low and high else f"≥ {low}" if low else f"≤ {high}"


def _measured(measured: Measured, unit: str | None) -> str:
    if isinstance(measured.value, str):
        value = measured.value
    else:
        value = show(measured.value, 3)
        if measured.stderr is not None:
            value += f" ± {show(measured.stderr, 2)}"
        value = " ".join(filter(None, [value, unit]))
    return f"{value}\n{', '.join(measured.models)}"


def _line(title: str, claim: Claim, found: Verdict) -> dict[str, Any]:
    """A line of the CSV; `low` and `high` are what holds needs, `direction_low` and `direction_high` its weaker form."""
    low, high = (None, None) if isinstance(claim["holds"], str) else claim["holds"]
    weaker_low, weaker_high = claim.get("direction", (None, None))
    measured = found.measured
    return {
        "id": claim["id"],
        "about": title,
        "text": claim["text"],
        "place": claim["place"],
        "model": ", ".join(measured.models) if measured else None,
        "value": measured.value if measured else None,
        "stderr": measured.stderr if measured else None,
        "unit": claim.get("unit"),
        "low": low,
        "high": high,
        "direction_low": weaker_low,
        "direction_high": weaker_high,
        "verdict": found.verdict,
        "reason": found.reason or None,
        "note": claim.get("note"),
        "_claim": claim,
        "_measured": measured,
    }


KIND = ArtifactKind("table", (), ("claims", "tables"), make, of_page=_of_page)
