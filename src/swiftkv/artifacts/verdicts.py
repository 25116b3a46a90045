"""Judging claims: cells of artifacts' CSVs, the quantity a claim makes of them, and a verdict within its error bars."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swiftkv.artifacts.claims_file import HOW, Claim, cells
from swiftkv.errors import UserError
from swiftkv.statistics import ERRORS, quadrature

Row = Mapping[str, Any]

HOLDS, DIRECTION, UNDECIDED, UNMEASURED = "holds", "holds in direction", "undecided", "not measured"
FAILS, FAILS_HERE = "does not hold", "does not hold here"
VERDICTS = (HOLDS, DIRECTION, UNDECIDED, FAILS, FAILS_HERE, UNMEASURED)
NEAR = 0.05  # how far, relatively, a length or a depth may be from the one a claim names and still be the same


class Unmeasured(Exception):
    """What a claim needs was not measured; the message says why."""


@dataclass(frozen=True)
class Scene:
    """What claims are judged on.

    Attributes:
        tables: rows of each artifact's CSV, numbers as floats and empty cells as None.
        roles: role -> the model that plays it (name, title, published), None where none does.
        models: role -> the model (its published name) that the claims are about.
        benchmarks: how many benchmarks the published averages are over.
        absent: artifact -> why it is not made.
        stand_ins: variant -> the variant that stands in for it.
        tasks: the benchmarks there are; an artifact may show fewer of them at a smaller scale.
    """

    tables: Mapping[str, Sequence[Row]]
    roles: Mapping[str, Mapping[str, str] | None]
    models: Mapping[str, str]
    benchmarks: int
    absent: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    tasks: Collection[str] = ()


@dataclass(frozen=True)
class Measured:
    """A measured quantity with its standard error, what it was measured on, and why it is not the claim's own case."""

    value: float | str
    stderr: float | None
    models: tuple[str, ...]
    differs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One of `VERDICTS`, the measured quantity if there is one, and the reason."""

    verdict: str
    measured: Measured | None
    reason: str


def judge(claim: Claim, scene: Scene) -> Verdict:
    """The verdict on a claim, never more certain than its error bars of two standard errors.

    A claim can hold or not hold as it stands only on the model and hardware it is about; elsewhere only its direction can
    be judged.

    Raises:
        UserError: a cell's selector matches several rows where the claim needs one, or names a column that is not there.
    """
    try:
        measured = measure(claim, scene)
    except Unmeasured as reason:
        return Verdict(UNMEASURED, None, str(reason))
    reasons = [*measured.differs, *measured.remarks]
    if measured.stderr is None and not isinstance(claim["holds"], str):
        reasons.append("no error known")
    verdict = _verdict(measured, claim["holds"], claim.get("direction"))
    if verdict == UNMEASURED:
        reasons.insert(0, f"needs {_needs(claim, scene)}")
    return Verdict(verdict, measured, "; ".join(reasons))


def _verdict(measured: Measured, holds: str | Sequence[float | None], direction: Sequence[float | None] | None) -> str:
    if isinstance(holds, str):
        literal = weaker = measured.value == holds
    else:
        literal = inside(measured, holds)
        weaker = literal if direction is None else inside(measured, direction)
        if measured.differs and direction is None:
            return UNMEASURED
    if measured.differs:
        return {True: DIRECTION, False: FAILS_HERE, None: UNDECIDED}[weaker]
    if literal:
        return HOLDS
    return DIRECTION if weaker else FAILS if literal is False and weaker is False else UNDECIDED


def inside(measured: Measured, bounds: Sequence[float | None]) -> bool | None:
    """Whether a quantity lies within bounds (None is open); None where its error bar reaches over one of them."""
    low, high = (-math.inf if bounds[0] is None else bounds[0], math.inf if bounds[1] is None else bounds[1])
    reach = ERRORS * (measured.stderr or 0.0)
    if low <= measured.value - reach and measured.value + reach <= high:
        return True
    if measured.value + reach < low or high < measured.value - reach:
        return False
    return None


def measure(claim: Claim, scene: Scene) -> Measured:
    """The quantity of a claim.

    Raises:
        Unmeasured: there is none; the message says why.
        UserError: as `judge`.
    """
    roles = [cell["where"]["role"] for cell in cells(claim)] + ([claim["against"]] if "against" in claim else [])
    _check_players(roles, scene)
    found = [_select(cell, claim, scene) for cell in cells(claim)]
    picked = [rows for rows, _ in found]
    value, stderr, remarks = _quantity(claim, picked)
    used = [row for rows in picked for row in rows]
    differs = [*_other_models(roles, scene), *_other_hardware(claim, used), *_other_average(claim, used, scene)]
    differs += [sentence for _, sentences in found for sentence in sentences]
    models = tuple(dict.fromkeys(scene.roles[role]["title"] for role in roles))
    return Measured(value, stderr, models, tuple(dict.fromkeys(differs)), tuple(remarks))


def _check_players(roles: Sequence[str], scene: Scene) -> None:
    """Every role is played, and different roles by different models."""
    players: dict[str, str] = {}
    for role in dict.fromkeys(roles):
        model = scene.roles.get(role)
        if model is None:
            raise Unmeasured(f"no model of this scale plays the role {role}")
        if model["name"] in players:
            raise Unmeasured(f"{model['title']} plays both the role {players[model['name']]} and the role {role}")
        players[model["name"]] = role


def _other_models(roles: Sequence[str], scene: Scene) -> Iterator[str]:
    for role in dict.fromkeys(roles):
        if scene.roles[role]["published"] != scene.models[role]:
            yield f"{scene.roles[role]['title']} in place of {scene.models[role]}"


def _other_hardware(claim: Claim, rows: Sequence[Row]) -> Iterator[str]:
    """How the hardware of the rows differs from what is wanted, such as "4 x H100"."""
    if "hardware" not in claim:
        return
    count, name = claim["hardware"].split(" x ")
    for row in rows:
        machine = _machine(row)
        found = re.match(r"(\d+) × (.+)", machine)
        if not found or found[1] != count or name not in found[2]:
            yield f"on {machine or 'unknown hardware'} in place of {claim['hardware']}"


def _machine(row: Row) -> str:
    """What a row was measured on, "4 × NVIDIA H100 80GB HBM3": the first of its conditions, or its GPUs and device."""
    if row.get("conditions"):
        return str(row["conditions"]).split(",")[0]
    return " × ".join([f"{row['gpus']:g}"] * bool(row.get("gpus")) + [str(row["device"])]) if row.get("device") else ""


def _other_average(claim: Claim, rows: Sequence[Row], scene: Scene) -> Iterator[str]:
    for row in rows if any(cell["column"] == "average" for cell in cells(claim)) else []:
        tasks = str(row.get("average_tasks") or "").split()
        if tasks and len(tasks) != scene.benchmarks:
            yield f"the average is over {len(tasks)} of {scene.benchmarks} benchmarks"


def _needs(claim: Claim, scene: Scene) -> str:
    models = dict.fromkeys(scene.models[cell["where"]["role"]] for cell in cells(claim))
    return " and ".join([*models, *([claim["hardware"]] if "hardware" in claim else [])])


def _select(cell: Mapping[str, Any], claim: Claim, scene: Scene) -> tuple[list[Row], list[str]]:
    """The rows a cell's selectors leave, and how they differ from what was asked for."""
    artifact, where = cell["artifact"], dict(cell["where"])
    if artifact in scene.absent:
        raise Unmeasured(f"{artifact} is not made: {scene.absent[artifact]}")
    if artifact not in scene.tables:
        raise Unmeasured(f"{artifact} is not among this scale's artifacts")
    if isinstance(variant := where.get("variant"), str) and variant in scene.stand_ins:
        raise Unmeasured(f"{scene.stand_ins[variant]} stands in for {variant} at this scale")
    rows = [row for row in scene.tables[artifact] if row.get("row", "measured") in (None, "measured")]
    columns = {column for row in rows for column in row}
    for column in [
        cell["column"],
        *(key for key in where if key != "role"),
        *([cell["along"]] if "along" in cell else []),
    ]:
        if rows and column in scene.tasks and column not in columns:
            raise Unmeasured(f"{artifact} does not show {column} at this scale")
        if rows and column not in columns:
            raise UserError(f"claim {claim['id']}: {artifact}.csv has no column {column!r}")
    model = scene.roles[where.pop("role")]["name"]
    rows, differs = [row for row in rows if row["model"] == model], []
    for column, wanted in where.items():
        rows, differing = _pick(rows, column, wanted)
        differs += differing
    if not rows:
        asked = ", ".join(f"{column} {_said(wanted)}" for column, wanted in where.items())
        raise Unmeasured(f"{artifact} has no row of {scene.roles[cell['where']['role']]['title']} with {asked}")
    return rows, differs


def _pick(rows: Sequence[Row], column: str, wanted: Any, per: str | None = None) -> tuple[list[Row], list[str]]:
    """The rows that one selector leaves, and how they differ from it; `per` is the column of what has an end each."""
    known = [row for row in rows if row.get(column) is not None]
    if isinstance(wanted, Mapping):
        kept, _ = _pick(rows, column, wanted.get("is", wanted.get("not")), wanted.get("per"))
        return ([row for row in known if row not in kept] if "not" in wanted else kept), []
    if wanted in ("lowest", "highest"):
        choose = min if wanted == "lowest" else max
        ends: dict[Any, float] = {}
        for row in known:
            ends[row.get(per)] = choose(ends.get(row.get(per), row[column]), row[column])
        return [row for row in known if row[column] == ends[row.get(per)]], []
    if not isinstance(wanted, (int, float)) or isinstance(wanted, bool):
        return [row for row in known if str(row[column]) == str(wanted)], []
    nearest = min((row[column] for row in known), key=lambda value: (abs(value - wanted), value), default=wanted)
    differs = [f"{column} {nearest:,g} in place of {wanted:,g}"] if abs(nearest - wanted) > NEAR * abs(wanted) else []
    return [row for row in known if row[column] == nearest], differs


def _said(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        per = f" per {wanted['per']}" if "per" in wanted else ""
        return (f"not {wanted['not']}" if "not" in wanted else str(wanted["is"])) + per
    return f"{wanted:,g}" if isinstance(wanted, (int, float)) and not isinstance(wanted, bool) else str(wanted)


def _one(rows: Sequence[Row], cell: Mapping[str, Any], claim: Claim) -> tuple[Any, float | None]:
    """Value and standard error of the one row that is left."""
    if len(rows) > 1:
        raise UserError(
            f"claim {claim['id']}: its cell matches {len(rows)} rows of {cell['artifact']}.csv; name the row by further columns"
        )
    row = rows[0]
    if row.get(cell["column"]) is None:
        raise Unmeasured(f"{cell['artifact']}, {row.get('variant') or row['model']}: {_why(row, cell['column'])}")
    return row[cell["column"]], row.get(f"{cell['column']}_stderr")


def _why(row: Row, column: str) -> str:
    if row.get("status") == "oom":
        return f"no {column}, out of memory"
    return f"no {column}" + (f", {reason}" if (reason := row.get("reason") or row.get("missing")) else "")


def _quantity(claim: Claim, picked: Sequence[Sequence[Row]]) -> tuple[float | str, float | None, list[str]]:
    """What a claim is about, made of the rows of its cells: value, standard error and remarks."""
    how, asked = next(how for how in HOW if how in claim), cells(claim)
    if how in ("cell", "difference", "ratio"):
        (first, error), *others = (_one(rows, cell, claim) for rows, cell in zip(picked, asked, strict=True))
        above = [
            said for rows, cell in zip(picked, asked, strict=True) for said in _above_limit(rows[0], cell["column"])
        ]
        if not others:
            return first, error, above
        ((second, other),) = others
        if how == "difference":
            return first - second, quadrature(error, other), above
        if second == 0:
            raise Unmeasured("the quantity it is divided by is 0")
        value = first / second  # and its error to first order
        missing = error is None or other is None
        return value, None if missing else quadrature(error / second, value * other / second), above
    (cell,), (rows,) = asked, picked
    column, errors = cell["column"], f"{cell['column']}_stderr"
    known = [row for row in rows if row.get(column) is not None]
    if not known:
        raise Unmeasured(f"{cell['artifact']}: {_why(rows[0], column)}")
    remarks = [f"{len(rows) - len(known)} of {len(rows)} cells are empty"] if len(known) < len(rows) else []
    if how != "rises":
        row = (max if how == "largest" else min)(known, key=lambda row: row[column])
        return row[column], row.get(errors), [*remarks, *_above_limit(row, column)]
    return *_smallest_change(claim, cell, known), remarks


def _above_limit(row: Row, column: str) -> Iterator[str]:
    """That a speed-up, or its error bar, is above what the FLOP count allows, where the row says what that is."""
    limit = row.get(f"{column}_limit") if column.endswith("speedup") else None
    if limit is not None and (reach := row[column] + ERRORS * (row.get(f"{column}_stderr") or 0.0)) > limit:
        yield f"reaches {reach:.2f}×, above the {limit:.2f}× that the FLOP count allows"


def _smallest_change(claim: Claim, cell: Mapping[str, Any], known: Sequence[Row]) -> tuple[float, float | None]:
    """The smallest change from a row to any later one along a column: the smallest step up, or the deepest fall."""
    column, errors, along = cell["column"], f"{cell['column']}_stderr", cell["along"]
    ordered = sorted(known, key=lambda row: row[along])
    if len({row[along] for row in ordered}) < len(ordered):
        raise UserError(f"claim {claim['id']}: two rows of {cell['artifact']}.csv have the same {along}")
    if len(ordered) < 2:
        raise Unmeasured(f"{cell['artifact']} has {column} at one {along} only")
    steps = [
        (after[column] - before[column], quadrature(before.get(errors), after.get(errors)))
        for before, after in itertools.combinations(ordered, 2)
    ]
    return min(steps, key=lambda step: step[0])
