"""The claims of the paper and the blog post, each beside the measured cells that judge it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.artifacts.claims_file import Claim, bounds, cells, read_claims
from pipeline.artifacts.columns import AND, Column, Line, grid, table
from pipeline.artifacts.inputs import CLAIMS, players
from pipeline.artifacts.kind import ArtifactKind, Config, Entry, Files, Listed
from pipeline.artifacts.quantities import Measured, Scene
from pipeline.artifacts.records import read_published
from pipeline.artifacts.table import Footnotes, Table
from pipeline.artifacts.text import show
from pipeline.artifacts.verdicts import ARITHMETIC, CONTRADICTS, SAME, UNMEASURED, Verdict, judge
from swiftkv.section import Positive

PROJECT = Path(__file__).parents[4]


def _of_page(config: Config, entry: Entry, page: Mapping[str, Listed]) -> dict[str, Any]:
    """What the claims are judged on at this scale: the models by role, and artifacts and variants that are not there."""
    named = {artifact: page[artifact] for artifact in _named_artifacts() if artifact in page}
    shown_by = {artifact: listed.repeated or artifact for artifact, listed in named.items()}
    absent = {artifact: reason for artifact, other in shown_by.items() if (reason := page[other].left_out) is not None}
    shown_by = {artifact: other for artifact, other in shown_by.items() if artifact not in absent}
    return {
        "judged_on": {other: page[other].form for other in shown_by.values()},
        "shown_by": shown_by,
        "absent": absent,
        "roles": {role: next(iter(players(config, [role])), None) for role in config.roles},
        "tasks": list(config.tasks),
        "stand_ins": {variant: other for variant, other in config.stand_ins.items() if variant != other},
    }


@cache
def _named_artifacts() -> tuple[str, ...]:
    """The artifacts that claims are judged on."""
    groups = read_claims(PROJECT / CLAIMS)["claims"].values()
    return tuple(dict.fromkeys(cell["artifact"] for group in groups for claim in group for cell in cells(claim)))


def make(entry: Entry, files: Files) -> Table:
    """One line a claim: what it says and where, the value it states, the measured one, and the verdict."""
    content, scatter = read_claims(files["claims"][0]), entry.get("scatter_percent")
    drawn = {file.stem: read_published([file]) for file in files["tables"]}
    scene = Scene(
        tables={artifact: drawn[other] for artifact, other in entry["shown_by"].items() if other in drawn},
        roles=entry["roles"],
        models=content["models"],
        benchmarks=content["benchmarks"],
        resolution=content["resolution"],
        requests=content["requests"],
        scatter=scatter and scatter / 100,
        absent=entry["absent"],
        stand_ins=entry["stand_ins"],
        tasks=entry["tasks"],
    )
    lines = [_line(title, claim, judge(claim, scene)) for title, group in content["claims"].items() for claim in group]
    _mark_repeats(lines)
    footnotes = Footnotes()

    def verdict(line: Line) -> str:
        said = line["verdict"] + (
            f", {line['case']}" if line["case"] and line["verdict"] in (SAME, CONTRADICTS) else ""
        )
        return " ".join([said, *(footnotes.mark(line[key]) for key in ("reason", "_repeats", "note") if line[key])])

    columns = [
        Column("Claim", "text"),
        Column("Place", "place"),
        Column("Stated\n(direction)", lambda line: needed(line["_claim"])),
        Column("Measured", lambda line: line["_measured"] and _measured(line["_measured"])),
        Column("Verdict", verdict),
    ]
    panels = [
        grid([line for line in lines if line["about"] == title], columns, footnotes, title, lambda line: None)
        for title in content["claims"]
    ]
    return table(
        entry, lines, panels, entry.get("notes", []), footnotes, f"{entry['title'][0].upper()}{entry['title'][1:]}"
    )


def _mark_repeats(lines: Iterable[dict[str, Any]]) -> None:
    """Name in each line the first claim that is judged by the same measurement."""
    first: dict[Any, dict[str, Any]] = {}
    for line in lines:
        if line["verdict"] in (ARITHMETIC, UNMEASURED):
            continue
        value, stderr, *_ = line["_measured"].quantity
        earlier = first.setdefault(line["id"] if isinstance(value, str) else (value, stderr), line)
        if earlier is not line:
            line["same_as"] = earlier["id"]
            line["_repeats"] = f'the measurement of "{earlier["text"]}", {earlier["place"]}'


def needed(claim: Claim) -> str:
    """What a claim states, and on a second line, in brackets, the direction it is also judged by."""
    stated, direction = bounds(claim)
    both = " ".join(filter(None, [_bounds(stated), claim.get("unit")]))
    return f"{both}\n({_bounds(direction)})" if direction else both


def _bounds(wanted: str | Sequence[float | None]) -> str:
    if isinstance(wanted, str):
        return wanted
    low, high = (None if bound is None else f"{bound:,.10g}" for bound in wanted)
    return f"{low} to {high}" if low and high else f"≥ {low}" if low else f"≤ {high}"


def _measured(measured: Measured) -> str:
    number, stderr, *_ = measured.quantity
    if isinstance(number, str):
        value = number
    else:
        value = show(number, 3) + (f" ± {show(stderr, 2)}" if stderr is not None else "")
        value = " ".join(filter(None, [value, measured.unit]))
    return f"{value}\n{', '.join(measured.models)}"


def _line(title: str, claim: Claim, found: Verdict) -> dict[str, Any]:
    """A line of the CSV; `low` and `high` are what is stated, `direction_low` and `direction_high` its weaker form.

    `case` says what a quantity was measured on in place of the claim's own case, and `same_as` is the first claim that is
    judged by the same measurement.
    """
    stated, direction = bounds(claim)
    low, high = (None, None) if isinstance(stated, str) else stated
    weaker_low, weaker_high = direction or (None, None)
    measured = found.measured
    return {
        "id": claim["id"],
        "about": title,
        "text": claim["text"],
        "place": claim["place"],
        "model": ", ".join(measured.models) if measured else None,
        "value": measured.quantity.value if measured else None,
        "stderr": measured.quantity.stderr if measured else None,
        "unit": measured.unit if measured else claim.get("unit"),
        "low": low,
        "high": high,
        "direction_low": weaker_low,
        "direction_high": weaker_high,
        "verdict": found.verdict,
        "case": measured.other if measured else None,
        "same_as": None,
        "reason": found.reason or None,
        "note": claim.get("note"),
        "_repeats": None,
        "_claim": claim,
        "_measured": measured,
        "_origins": {"Measured": AND.join(measured.origins)} if measured else {},
    }


KIND = ArtifactKind(
    "table",
    (),
    ("claims", "tables"),
    make,
    own={"scatter_percent": Positive},
    optional=("scatter_percent",),
    of_page=_of_page,
)
