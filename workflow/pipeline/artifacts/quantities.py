"""What claims are judged on: cells of artifacts' CSVs, and the quantity a claim makes of them, with its error."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.artifacts.claims_file import HOW, Claim, bounds, cells
from pipeline.artifacts.columns import origin
from pipeline.statistics import ERRORS, Difference, quadrature
from swiftkv.errors import UserError

Row = Mapping[str, Any]

# What a quantity was measured on in place of the claim's own case. Settings are hardware, lengths, limits and benchmarks;
# requests are how many and how long, and the weights that served them.
MODEL, SETTING, REQUESTS = "other model", "other setting", "other requests"
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
        resolution: points that two errors of a loss may have at most, for a small one to be seen.
        requests: artifact -> column -> what the sources measured its speed with.
        scatter: the relative standard error that a speed or time has which was measured once; None: nothing is known.
        absent: artifact -> why it is not made.
        stand_ins: variant -> the variant that stands in for it.
        tasks: the benchmarks there are; an artifact may show fewer of them at a smaller scale.
    """

    tables: Mapping[str, Sequence[Row]]
    roles: Mapping[str, Mapping[str, str] | None]
    models: Mapping[str, str]
    benchmarks: int
    resolution: float
    requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scatter: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    tasks: Collection[str] = ()


class Quantity(NamedTuple):
    """What a claim makes of its cells; `rise` is the last cell minus the first, of claims on what rises."""

    value: float | str
    stderr: float | None
    remarks: tuple[str, ...] = ()
    rise: Difference | None = None


@dataclass(frozen=True)
class Measured:
    """A measured quantity and what it was measured on.

    Attributes:
        quantity: its value with the standard error, None where no error is known.
        unit: of both.
        models: titles.
        other: `MODEL`, `SETTING` or `REQUESTS`, the first of them that is not the claim's own; None: all are.
        differs: in what, "... in place of ...".
        origins: what each of its cells was measured by, as `columns.origin` says it, behind `artifact#`.
    """

    quantity: Quantity
    unit: str | None
    models: tuple[str, ...]
    other: str | None = None
    differs: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


class _Picked(NamedTuple):
    """The rows a selector, or a cell's selectors, leave, how they differ from what was asked for, and what was found."""

    rows: list[Row]
    differs: list[str]
    found: list[str]


class _End(NamedTuple):
    """One side of a difference or a ratio: its cell, the one row, and the value there with its error."""

    cell: Mapping[str, Any]
    row: Row
    value: Any
    stderr: float | None


def measure(claim: Claim, scene: Scene) -> Measured:
    """The quantity of a claim.

    Raises:
        Unmeasured: there is none; the message says why.
        UserError: as `judge`.
    """
    roles = [cell["where"]["role"] for cell in cells(claim)] + ([claim["against"]] if "against" in claim else [])
    _check_players(roles, scene)
    picked = [_select(cell, claim, scene) for cell in cells(claim)]
    quantity = _quantity(claim, [found.rows for found in picked], scene)
    found = [sentence for one in picked for sentence in one.found]
    used = [row for one in picked for row in one.rows]
    selected = [sentence for one in picked for sentence in one.differs]
    others = {
        MODEL: [*_other_models(roles, scene)],
        SETTING: [*_other_hardware(claim, used), *_other_average(claim, used, scene), *selected],
        REQUESTS: [
            sentence
            for cell, one in zip(cells(claim), picked, strict=True)
            for sentence in _other_requests(claim, one.rows, scene.requests.get(cell["artifact"], {}))
        ],
    }
    return Measured(
        quantity._replace(remarks=tuple(dict.fromkeys([*found, *quantity.remarks]))),
        claim.get("unit"),
        tuple(dict.fromkeys(scene.roles[role]["title"] for role in roles)),
        next((other for other, sentences in others.items() if sentences), None),
        tuple(dict.fromkeys(itertools.chain(*others.values()))),
        tuple(dict.fromkeys(_origins(cells(claim), picked))),
    )


def _origins(asked: Sequence[Mapping[str, Any]], picked: Sequence[_Picked]) -> Iterator[str]:
    for cell, one in zip(asked, picked, strict=True):
        yield from (f"{cell['artifact']}#{origin(row, cell['column'])}" for row in one.rows)


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


def _other_requests(claim: Claim, rows: Sequence[Row], stated: Mapping[str, float]) -> Iterator[str]:
    """In what the requests, and the weights, of a measured speed differ from those of the sources, as far as rows say."""
    for row in rows if "hardware" in claim else []:
        for column, wanted in stated.items():
            if row.get(column) is not None:
                yield from _in_place(column, row[column], wanted)
        if "dummy" in str(row.get("conditions")):
            yield "dummy weights in place of a model's"


def _in_place(column: str, value: float, wanted: float) -> list[str]:
    """That a number is another than the one wanted, if it is not near."""
    return [f"{column} {value:,g} in place of {wanted:,g}"] if abs(value - wanted) > NEAR * abs(wanted) else []


def _select(cell: Mapping[str, Any], claim: Claim, scene: Scene) -> _Picked:
    """The rows a cell's selectors leave."""
    artifact, where = cell["artifact"], dict(cell["where"])
    if artifact in scene.absent:
        raise Unmeasured(f"{artifact} is not made: {scene.absent[artifact]}")
    if artifact not in scene.tables:
        raise Unmeasured(f"{artifact} is not among this scale's artifacts")
    if isinstance(variant := where.get("variant"), str) and variant in scene.stand_ins:
        raise Unmeasured(f"{scene.stand_ins[variant]} stands in for {variant} at this scale")
    rows = [row for row in scene.tables[artifact] if row.get("row", "measured") in (None, "measured")]
    columns = {column for row in rows for column in row}
    along = [cell["along"]] if "along" in cell else []
    for column in [cell["column"], *(key for key in where if key != "role"), *along]:
        if rows and column in scene.tasks and column not in columns:
            raise Unmeasured(f"{artifact} does not show {column} at this scale")
        if rows and column not in columns:
            raise UserError(f"claim {claim['id']}: {artifact}.csv has no column {column!r}")
    model = scene.roles[where.pop("role")]["name"]
    picked = _Picked([row for row in rows if row["model"] == model], [], [])
    for column, wanted in where.items():
        left = _pick(picked.rows, column, wanted)
        picked = _Picked(left.rows, picked.differs + left.differs, picked.found + left.found)
    if not picked.rows:
        asked = ", ".join(f"{column} {_said(wanted)}" for column, wanted in where.items())
        raise Unmeasured(f"{artifact} has no row of {scene.roles[cell['where']['role']]['title']} with {asked}")
    return picked


def _pick(rows: Sequence[Row], column: str, wanted: Any) -> _Picked:
    """The rows that one selector leaves."""
    known = [row for row in rows if row.get(column) is not None]
    if wanted in ("lowest", "highest"):
        wanted = {"is": wanted}
    if isinstance(wanted, Mapping):
        return _pick_ends(known, column, wanted)
    if isinstance(wanted, (str, bool, list)):
        names = list(map(str, wanted if isinstance(wanted, list) else [wanted]))
        return _Picked([row for row in known if str(row[column]) in names], [], [])
    nearest = min((row[column] for row in known), key=lambda value: (abs(value - wanted), value), default=wanted)
    return _Picked([row for row in known if row[column] == nearest], _in_place(column, nearest, wanted), [])


def _pick_ends(known: Sequence[Row], column: str, wanted: Mapping[str, Any]) -> _Picked:
    """The rows at an end of a column, of each value of the column `per` where that is given, or with `not` all others."""
    which, per = wanted.get("is", wanted.get("not")), wanted.get("per")
    choose = min if which == "lowest" else max
    ends: dict[Any, float] = {}
    for row in known:
        ends[row.get(per)] = choose(ends.get(row.get(per), row[column]), row[column])
    kept = [row for row in known if (row[column] == ends[row.get(per)]) == ("is" in wanted)]
    values = sorted(set(ends.values()))
    if "stated" in wanted:
        return _Picked(
            kept, [differs for value in values for differs in _in_place(column, value, wanted["stated"])], []
        )
    said = " or ".join(f"{value:,g}" for value in values)
    found = f"{column} {'' if 'is' in wanted else 'above ' if which == 'lowest' else 'below '}{said}, the {which}"
    return _Picked(kept, [], [found + (f" of each {per}" if per else "")] if kept else [])


def _said(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        per = f" per {wanted['per']}" if "per" in wanted else ""
        return (f"not {wanted['not']}" if "not" in wanted else str(wanted["is"])) + per
    if isinstance(wanted, list):
        return " or ".join(wanted)
    return f"{wanted:,g}" if isinstance(wanted, (int, float)) and not isinstance(wanted, bool) else str(wanted)


def _end(rows: Sequence[Row], cell: Mapping[str, Any], claim: Claim, scene: Scene) -> _End:
    """The one row that is left."""
    if len(rows) > 1:
        raise UserError(
            f"claim {claim['id']}: its cell matches {len(rows)} rows of {cell['artifact']}.csv; name the row by further columns"
        )
    row, column = rows[0], cell["column"]
    if row.get(column) is None or row.get("status") in ("missing", "unavailable"):
        raise Unmeasured(f"{cell['artifact']}, {row.get('variant') or row['model']}: {_why(row, column)}")
    return _End(cell, row, row[column], _error(row, column, claim, scene))


def _error(row: Row, column: str, claim: Claim, scene: Scene) -> float | None:
    """The standard error of a cell; that of a speed or time without one by the scatter that is stated."""
    known, value = row.get(f"{column}_stderr"), row[column]
    if known is not None or scene.scatter is None or "hardware" not in claim or isinstance(value, str):
        return known
    return scene.scatter * abs(100 - value if column.endswith("reduction_percent") else value)


def _why(row: Row, column: str) -> str:
    if row.get("status") == "oom":
        return f"no {column}, out of memory"
    return f"no {column}" + (f", {reason}" if (reason := row.get("reason") or row.get("missing")) else "")


def _quantity(claim: Claim, picked: Sequence[Sequence[Row]], scene: Scene) -> Quantity:
    """What a claim is about, made of the rows of its cells."""
    how, asked = next(how for how in HOW if how in claim), cells(claim)
    if how in ("cell", "difference", "ratio"):
        ends = [_end(rows, cell, claim, scene) for rows, cell in zip(picked, asked, strict=True)]
        above = tuple(said for end in ends for said in _above_limit(end.row, end.cell["column"]))
        if how == "cell":
            return Quantity(ends[0].value, ends[0].stderr, above)
        if how == "difference":
            return Quantity(*_difference(ends, scene), above)
        first, second = ends
        if second.value == 0:
            raise Unmeasured("the quantity it is divided by is 0")
        value = first.value / second.value  # and its error to first order
        if first.stderr is None or second.stderr is None:
            return Quantity(value, None, above)
        return Quantity(value, math.hypot(first.stderr, value * second.stderr) / abs(second.value), above)
    (cell,), (rows,) = asked, picked
    column = cell["column"]
    known = [row for row in rows if row.get(column) is not None]
    if not known:
        raise Unmeasured(f"{cell['artifact']}: {_why(rows[0], column)}")
    remarks = (f"{len(rows) - len(known)} of {len(rows)} cells are empty",) if len(known) < len(rows) else ()
    if how == "rises":
        return _rises(known, cell, claim, scene)._replace(remarks=remarks)
    every = how == "smallest" or (bounds(claim)[1] or bounds(claim)[0])[1] is not None  # all have to keep to a bound

    def reached(row: Row) -> float:
        reach = ERRORS * (_error(row, column, claim, scene) or 0.0) if every else 0.0
        return row[column] + (reach if how == "largest" else -reach)

    row = (max if how == "largest" else min)(known, key=reached)
    return Quantity(row[column], _error(row, column, claim, scene), (*remarks, *_above_limit(row, column)))


def _above_limit(row: Row, column: str) -> Iterator[str]:
    """That a speed-up, or its error bar, is above what the FLOP count allows, where the row says what that is."""
    limit = row.get(f"{column}_limit") if column.endswith("speedup") else None
    if limit is not None and (reach := row[column] + ERRORS * (row.get(f"{column}_stderr") or 0.0)) > limit:
        yield f"reaches {reach:.2f}×, above the {limit:.2f}× that the FLOP count allows"


def _difference(ends: Sequence[_End], scene: Scene) -> Difference:
    """First minus second; of four, by how much that is more than third minus fourth."""
    parts = []
    for first, second in zip(ends[::2], ends[1::2], strict=True):
        stderr = _paired_stderr(first, second, scene)
        parts.append(
            Difference(
                first.value - second.value, quadrature(first.stderr, second.stderr) if stderr is None else stderr
            )
        )
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    return Difference(first.value - second.value, quadrature(first.stderr, second.stderr))


def _paired_stderr(first: _End, second: _End, scene: Scene) -> float | None:
    """The error of the difference of two rows of a table, where that has it of the same questions; see `paired.lines`."""
    artifact, column = first.cell["artifact"], first.cell["column"]
    if (second.cell["artifact"], second.cell["column"]) != (artifact, column):
        return None
    names = ("model", "part", "variant", "kv_cache")
    ends = [[end.row.get(name) for name in names] for end in (first, second)]
    for line in scene.tables[artifact]:
        if line.get("row") == "difference":
            compared = [[line.get(f"{side}{name}") for name in names] for side in ("", "against_")]
            if compared in (ends, ends[::-1]):
                return line.get(f"{column}_difference_stderr")
    return None


def _rises(known: Sequence[Row], cell: Mapping[str, Any], claim: Claim, scene: Scene) -> Quantity:
    """The smallest change from a row to any later one along a column: the smallest step up, or the deepest fall."""
    column, along = cell["column"], cell["along"]
    ordered = sorted(known, key=lambda row: row[along])
    if len({row[along] for row in ordered}) < len(ordered):
        raise UserError(f"claim {claim['id']}: two rows of {cell['artifact']}.csv have the same {along}")
    if len(ordered) < 2:
        raise Unmeasured(f"{cell['artifact']} has {column} at one {along} only")

    def step(before: Row, after: Row) -> Difference:
        errors = (_error(row, column, claim, scene) for row in (before, after))
        return Difference(after[column] - before[column], quadrature(*errors))

    smallest = min(itertools.starmap(step, itertools.combinations(ordered, 2)), key=lambda change: change.value)
    return Quantity(*smallest, rise=step(ordered[0], ordered[-1]))
