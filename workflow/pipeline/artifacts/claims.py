"""The checkable sentences of the paper and of the blog post, in claims.yaml, and the rows of artifacts that judge each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config import load_yaml

if TYPE_CHECKING:
    import pandas as pd

AGREES, CONTRADICTS, UNDECIDED, UNMEASURED = VERDICTS = ("agrees", "contradicts", "undecided", "not measured")
BENCHMARKS = 7  # that the sources' averages are over
OUTPUT_TOKENS, TOTAL_TOKENS = 256, 15e6  # of the sources' requests (Figure 3, App. B.2)
NEAR = 0.05  # how far, relatively, a length or a limit may be from the stated one and still be the same
# Of serving points, which tell rows apart
SETTINGS = ["input_tokens", "output_tokens", "total_tokens", "memory_gib", "speculative"]
_ENDS = {"lowest": "min", "highest": "max"}
# Settings of a number's place, and how a sentence on another one begins.
_PLACES = {"input_tokens": "prompts", "memory_gib": "a limit", "depth": "a depth in percent", "at": "an axis"}

Bounds = Sequence[float | None]


class Claim(NamedTuple):
    """A line of claims.yaml, which has the meaning of each field; bounds are (least, most)."""

    id: str
    text: str
    place: str
    how: str
    of: Sequence[Any]
    stated: Bounds | str
    weaker: Bounds | None = None
    unit: str = ""
    note: str = ""
    own: bool = False
    kl: bool = False

    @property
    def cells(self) -> list[Mapping[str, Any]]:
        """The numbers of artifacts that it is judged by; none of an arithmetic one."""
        return [{"variant": "swiftkv-50", "kv_cache": "auto", **cell} for cell in self.of if isinstance(cell, Mapping)]


_WHOLE = load_yaml(Path(__file__).with_name("claims.yaml"))
MODELS: Mapping[str, str] = _WHOLE["models"]
SECTIONS = {title: [Claim(**line) for line in lines] for title, lines in _WHOLE["sections"].items()}
CLAIMS = [claim for lines in SECTIONS.values() for claim in lines]
ARTIFACTS = tuple(dict.fromkeys(cell["artifact"] for claim in CLAIMS for cell in claim.cells))
ARCHITECTURES = tuple(dict.fromkeys(name for claim in CLAIMS for name in claim.of if name in MODELS.values()))


class Unmeasured(Exception):
    """A claim's numbers were not measured; the message is the reason."""


@dataclass(frozen=True)
class Scene:
    """The results that claims are judged on.

    Attributes:
        tables: artifact -> the rows of its CSV, with `SETTINGS` of their points.
        roles: role -> the model that plays it (name, title, published), None where none does.
        shown_by: artifact -> the one that shows its records at this scale.
        absent: artifact -> why it is not made.
        stand_ins: variant -> the variant that stands in for it.
    """

    tables: Mapping[str, pd.DataFrame]
    roles: Mapping[str, Mapping[str, str] | None]
    shown_by: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    def table(self, artifact: str) -> pd.DataFrame:
        """The rows that show an artifact's records."""
        if artifact in self.absent:
            raise Unmeasured(f"{artifact} is not made: {self.absent[artifact]}")
        if (table := self.tables.get(self.shown_by.get(artifact, artifact))) is None:
            raise Unmeasured(f"{artifact} is not among this scale's artifacts")
        return table

    def players(self, claim: Claim) -> list[str]:
        """The titles of a claim's models: every role is played, and different roles by different models."""
        players: dict[str, str] = {}
        for role in dict.fromkeys(cell["role"] for cell in claim.cells):
            if (model := self.roles.get(role)) is None:
                raise Unmeasured(f"no model of this scale plays the role {role}")
            if (first := players.setdefault(model["name"], role)) != role:
                raise Unmeasured(f"{model['title']} plays both the role {first} and the role {role}")
        return [self.roles[role]["title"] for role in players.values()]

    def rows(self, claim: Claim, cell: Mapping[str, Any]) -> tuple[pd.DataFrame, list[str]]:
        """The rows of a claim's number, and how they differ from its own case: model, machine, requests, place."""
        table = self.table(cell["artifact"])
        variants = [cell["variant"]] if isinstance(cell["variant"], str) else cell["variant"]
        if stood := next((variant for variant in variants if variant in self.stand_ins), None):
            raise Unmeasured(f"{self.stand_ins[stood]} stands in for {stood} at this scale")
        model = self.roles[cell["role"]] or {}
        mine = table[(table["source"] != "published") & (table["model"] == model["name"]) & (table["against"] == "")]
        rows = mine[
            (mine["metric"] == cell["metric"]) & mine["variant"].isin(variants) & (mine["kv_cache"] == cell["kv_cache"])
        ]
        rows = rows.assign(depth=100 * rows["at"] / (rows["at"].max() + 2))  # the last layer has no number
        others = []
        for name, words in _PLACES.items():
            if name in cell and len(rows):
                end, number = cell[name] if isinstance(cell[name], list) else (cell[name], cell[name])
                values = rows[name]
                chosen = values.agg(_ENDS[end]) if end in _ENDS else min(values, key=lambda value: abs(value - end))
                rows = rows[values == chosen]
                if not isinstance(number, str) and abs(chosen - number) > NEAR * number:
                    others.append(f"{words} of {chosen:,g} in place of {number:,g}")
        if "speculative" in cell:
            rows = rows[rows["speculative"].notna()]
        if cell.get("rate") == "lowest":
            rows = rows[rows["at"] == rows.groupby("point")["at"].transform("min")]
        elif cell.get("rate") == "loaded":  # the baseline's time per token is a tenth above its lowest
            base = mine[(mine["metric"] == "tpot_median_ms") & (mine["variant"] == "baseline")]
            least = base.groupby("point")["value"].transform("min")
            rows = rows.merge(base.loc[base["value"] >= 1.1 * least, ["point", "at"]])
        known = rows[rows["value"].notna()] if claim.how != "status" else rows
        if not len(known):
            why = next((reason for reason in rows["reason"] if reason), "not measured")
            why = "out of memory" if "oom" in set(rows["status"]) else why
            raise Unmeasured(f"{cell['artifact']}, {' or '.join(variants)}: no {cell['metric']}, {why}")
        return known, [*_differs(cell, model, known), *others]


def _differs(cell: Mapping[str, Any], model: Mapping[str, str], rows: pd.DataFrame) -> Iterator[str]:
    """How rows of a model differ from the model, the benchmarks, the machine and the requests of the sources."""
    if model["published"] != MODELS[cell["role"]]:
        yield f"{model['title']} in place of {MODELS[cell['role']]}"
    if cell["metric"] == "average" and len(tasks := set(rows["n"]) - {BENCHMARKS}):
        yield f"the average is over {tasks.pop():g} of {BENCHMARKS} benchmarks"
    if "gpus" not in cell:
        return
    for machine in rows["conditions"].str.split(",").str[0].unique():
        if not machine.startswith(f"{cell['gpus']} × ") or "H100" not in machine:
            yield f"on {machine or 'unknown hardware'} in place of {cell['gpus']} × H100"
    if rows["conditions"].str.contains("dummy").any():
        yield "requests to dummy weights in place of a model's"
    wanted = {"output_tokens": OUTPUT_TOKENS} | (
        {"total_tokens": TOTAL_TOKENS} if cell["artifact"] == "figure3" else {}
    )
    for name, number in wanted.items():
        for value in rows[name].dropna().unique():
            if abs(value - number) > NEAR * number:
                yield f"requests of {value:,g} {name.replace('_', ' ')} in place of {number:,g}"
