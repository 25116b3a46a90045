"""Evidence for claims: the rows of artifacts' CSVs that a claim is about, and its quantity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pipeline.artifacts import claims
from pipeline.artifacts.claims import HIGHEST, LONGEST, LOWEST, Cell, Claim
from pipeline.artifacts.metrics import show
from pipeline.statistics import Estimate, estimate

NEAR = 0.05  # how far, relatively, a length or a limit may be from the stated one and still be the same
KEYS = ("model", "variant", "kv_cache")


class Unmeasured(Exception):
    """A claim's numbers were not measured; the message is the reason."""


@dataclass(frozen=True)
class Scene:
    """The results that claims are judged on.

    Attributes:
        tables: artifact -> the rows of its CSV.
        roles: role -> the model that plays it (name, title, published), None where none does.
        points: serving point -> its settings.
        shown_by: artifact -> the one that shows its records at this scale.
        absent: artifact -> why it is not made.
        stand_ins: variant -> the variant that stands in for it.
    """

    tables: Mapping[str, pd.DataFrame]
    roles: Mapping[str, Mapping[str, str] | None]
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shown_by: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)


class Evidence:
    """The rows of a claim's cells, how they differ from the claim's own case, and the claim's quantity."""

    def __init__(self, claim: Claim, scene: Scene) -> None:
        self.claim, self.scene, self.cells = claim, scene, claims.cells(claim)
        self.remarks: list[str] = []
        self._others: list[str] = []
        self._check_players()
        self.rows = [self._rows(cell) for cell in self.cells]

    def _check_players(self) -> None:
        """Every role is played, and different roles by different models."""
        players: dict[str, str] = {}
        for role in dict.fromkeys(cell.role for cell in self.cells):
            model = self.scene.roles.get(role)
            if model is None:
                raise Unmeasured(f"no model of this scale plays the role {role}")
            if model["name"] in players:
                raise Unmeasured(f"{model['title']} plays both the role {players[model['name']]} and the role {role}")
            players[model["name"]] = role
        self.titles = tuple(self.scene.roles[role]["title"] for role in players.values())

    def _rows(self, cell: Cell) -> pd.DataFrame:
        scene, variants = self.scene, (cell.variant,) if isinstance(cell.variant, str) else cell.variant
        if cell.artifact in scene.absent:
            raise Unmeasured(f"{cell.artifact} is not made: {scene.absent[cell.artifact]}")
        table = scene.tables.get(scene.shown_by.get(cell.artifact, cell.artifact))
        if table is None:
            raise Unmeasured(f"{cell.artifact} is not among this scale's artifacts")
        for variant in variants:
            if variant in scene.stand_ins:
                raise Unmeasured(f"{scene.stand_ins[variant]} stands in for {variant} at this scale")
        model = scene.roles[cell.role]
        rows = table[(table["source"] != "published") & (table["model"] == model["name"]) & (table["against"] == "")]
        self._of_model = rows
        rows = rows[
            (rows["metric"] == cell.metric) & rows["variant"].isin(variants) & (rows["kv_cache"] == cell.kv_cache)
        ]
        rows = self._at(self._limited(self._long(rows, cell), cell), cell)
        known = rows[rows["value"].notna()]
        if not len(rows) or (not len(known) and self.claim.quantity.how != "status"):
            why = next((reason for reason in rows["reason"] if reason), "not measured")
            why = "out of memory" if "oom" in set(rows["status"]) else why
            raise Unmeasured(f"{cell.artifact}, {' or '.join(variants)}: no {cell.metric}, {why}")
        return rows if self.claim.quantity.how == "status" else known

    def _choose(self, rows: pd.DataFrame, values: pd.Series, wanted: Any, what: str) -> pd.DataFrame:
        """The rows at an end, or nearest to a number, of a setting of their points."""
        if wanted is None or not len(rows):
            return rows
        end, number = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        if end in (LONGEST, HIGHEST, LOWEST):
            chosen = values.min() if end == LOWEST else values.max()
        else:
            chosen = min(values, key=lambda value: abs(value - end))
        if not isinstance(number, str) and abs(chosen - number) > NEAR * number:
            self._others.append(f"{what} of {chosen:,g} in place of {number:,g}")
        return rows[values == chosen]

    def _long(self, rows: pd.DataFrame, cell: Cell) -> pd.DataFrame:
        return self._choose(rows, self._setting(rows, "input_tokens"), cell.length, "prompts")

    def _limited(self, rows: pd.DataFrame, cell: Cell) -> pd.DataFrame:
        return self._choose(rows, self._setting(rows, "memory_gib"), cell.memory, "a limit")

    def _setting(self, rows: pd.DataFrame, name: str) -> pd.Series:
        return rows["point"].map(lambda point: self.scene.points.get(point, {}).get(name) or math.nan)

    def _at(self, rows: pd.DataFrame, cell: Cell) -> pd.DataFrame:
        """The rows at a place of the axis; of rates, the lowest of each point, or those that load the baseline."""
        at = cell.at
        if isinstance(at, tuple) and at[0] == "depth":
            layers = rows["at"].max() + 2  # the last has no number
            return self._choose(rows, rows["at"], at[1] / 100 * layers, "layers") if len(rows) else rows
        if isinstance(at, tuple):
            rows = rows.loc[[bool(self.scene.points.get(point, {}).get(at[0])) for point in rows["point"]]]
            at = at[1]
        if at == LOWEST:
            return rows[rows["at"] == rows.groupby("point")["at"].transform("min")]
        if at == "loaded":
            base = self._of_model[self._of_model["metric"] == "tpot_median_ms"]
            base = base[base["variant"] == "baseline"].set_index(["point", "at"])["value"]
            lowest = base.groupby("point").min()
            loaded = [
                base.get(place, 0) >= 1.1 * lowest.get(place[0], math.inf)
                for place in zip(rows["point"], rows["at"], strict=True)
            ]
            return rows.loc[loaded]
        return self._choose(rows, rows["at"], at, "an axis") if isinstance(at, float) or at == HIGHEST else rows

    def differs(self) -> Iterator[str]:
        """Yield how the rows differ from the claim's own case: model, setting, or requests."""
        for cell, rows in zip(self.cells, self.rows, strict=True):
            model = self.scene.roles[cell.role]
            if model["published"] != claims.MODELS[cell.role]:
                yield f"{model['title']} in place of {claims.MODELS[cell.role]}"
            if cell.metric == "average" and len(tasks := set(rows["n"]) - {claims.BENCHMARKS}):
                yield f"the average is over {tasks.pop():g} of {claims.BENCHMARKS} benchmarks"
            if cell.gpus is None:
                continue
            for machine in dict.fromkeys(rows["conditions"].str.split(",").str[0]):
                if not machine.startswith(f"{cell.gpus} × ") or "H100" not in machine:
                    yield f"on {machine or 'unknown hardware'} in place of {cell.gpus} × H100"
            if rows["conditions"].str.contains("dummy").any():
                yield "requests to dummy weights in place of a model's"
            wanted = {"output_tokens": claims.OUTPUT_TOKENS}
            wanted |= {"total_tokens": claims.TOTAL_TOKENS} if cell.artifact == "figure3" else {}
            for name, number in wanted.items():
                for value in self._setting(rows, name).dropna().unique():
                    if abs(value - number) > NEAR * number:
                        yield f"requests of {value:,g} {name.replace('_', ' ')} in place of {number:,g}"
        yield from self._others

    def quantity(self) -> tuple[Estimate | None, str]:
        """The estimate, or the status in words."""
        how = self.claim.quantity.how
        if how == "status":
            return None, self._only(0)["status"]
        if how == "cell":
            return _estimate(self._only(0)), ""
        if how == "minus":
            return self._minus(), ""
        if how == "ratio":
            return self._ratio(), ""
        rows = self.rows[0]
        if how == "rises":
            return self._rises(rows), ""
        if len(rows) > 1:
            self.remarks.append(f"the {'largest' if how == 'most' else 'smallest'} of {len(rows)}")
        return _estimate(rows.loc[rows["value"].idxmax() if how == "most" else rows["value"].idxmin()]), ""

    def _only(self, place: int) -> pd.Series:
        rows = self.rows[place]
        if len(rows) > 1:
            raise Unmeasured(f"{self.cells[place].artifact} has {len(rows)} such numbers")
        return rows.iloc[0]

    def _minus(self) -> Estimate:
        """First less second, with the interval of the same questions where the artifact has it; of four, of both."""
        parts = [self._apart(place) for place in range(0, len(self.cells), 2)]
        if self.claim.kl and (closer := self._paired(0, "kl")):
            ends = f"{show(closer.low, '+.3f')} to {show(closer.high, '+.3f')}"
            self.remarks.append(f"KL to the teacher, which is ours, differs by {show(closer.value, '+.3f')} ({ends})")
        return parts[0] if len(parts) == 1 else _less(*parts)

    def _apart(self, place: int) -> Estimate:
        first, second = _estimate(self._only(place)), _estimate(self._only(place + 1))
        return self._paired(place, self.cells[place].metric) or _less(first, second)

    def _paired(self, place: int, metric: str) -> Estimate | None:
        """The difference on the same questions or chats, in either direction."""
        one, other = self.cells[place], self.cells[place + 1]
        table = self.scene.tables[self.scene.shown_by.get(one.artifact, one.artifact)]
        sides = [(self.scene.roles[cell.role]["name"], cell.variant, cell.kv_cache) for cell in (one, other)]
        for sign, (first, second) in ((1, sides), (-1, sides[::-1])):
            wanted = dict(
                zip(
                    (*KEYS, "against_model", "against", "against_kv_cache", "metric"),
                    (*first, *second, metric),
                    strict=True,
                )
            )
            found = table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
            if len(found):
                apart = _estimate(found.iloc[0])
                return (
                    apart if sign > 0 else Estimate(-apart.value, apart.stderr, _turned(apart.high), _turned(apart.low))
                )
        return None

    def _ratio(self) -> Estimate:
        """The first over the second; of two intervals on a logarithmic scale, as of independent measurements."""
        first, second = (_estimate(self._only(place)) for place in (0, 1))
        value = first.value / second.value
        known = [one for one in (first, second) if one.low and one.high]
        if len(known) < 2:
            return Estimate(value)
        reach = math.hypot(*(math.log(one.high / one.low) / 2 for one in known))
        return Estimate(value, None, value * math.exp(-reach), value * math.exp(reach))

    def _rises(self, rows: pd.DataFrame) -> Estimate:
        """The last along the axis less the first; where it clearly falls between any two, that fall."""
        axis = rows["at"] if rows["at"].notna().all() else self._setting(rows, "input_tokens")
        if axis.nunique() < 2:
            raise Unmeasured(f"{self.cells[0].artifact} has {self.cells[0].metric} at one place only")
        ordered = [_estimate(row) for _, row in rows.assign(axis=axis).sort_values("axis").iterrows()]
        steps = (_less(after, before) for before, after in itertools.combinations(ordered, 2))
        falls = [step for step in steps if step.high is not None and step.high < 0]
        if falls:
            self.remarks.append(
                f"falls between {len(falls)} pairs of places, by {show(-min(falls).value, 's2')} at most"
            )
            return min(falls)
        return _less(ordered[-1], ordered[0])


def _estimate(row: pd.Series) -> Estimate:
    return Estimate(*(None if pd.isna(row[name]) else float(row[name]) for name in ("value", "stderr", "low", "high")))


def _turned(value: float | None) -> float | None:
    return None if value is None else -value


def _less(first: Estimate, second: Estimate) -> Estimate:
    """A difference of two independent estimates, from the halves of their intervals."""
    value = first.value - second.value
    if None in (first.low, first.high, second.low, second.high):
        return estimate(value)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, None, value - below, value + above)
