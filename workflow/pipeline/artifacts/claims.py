"""Load the checkable sentences of the paper and of the blog post, and select the rows of artifacts that judge each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.artifacts import Content
from pipeline.config import load_yaml
from pipeline.text import span

if TYPE_CHECKING:
    import pandas as pd

AGREES, SAME, OTHER, UNDECIDED, UNMEASURED = VERDICTS = (
    "confirmed", "points the same way", "does not hold here", "unclear", "not tested",
)  # fmt: skip
BENCHMARKS = 7  # in the sources' averages
PANEL = "panel"  # the artifact whose average judges where those benchmarks are at chance
OUTPUT_TOKENS = 256  # of the sources' requests (Figure 3, App. B.2)
TRAINING_TOKENS = 160e6  # the least that the sources state (App. B.1)
IN_FP8 = ("llama-3.1-70b-fp8", "llama-3.1-405b")  # the models that the sources serve with FP8 weights
FORMATS = {"float32", "float16", "bfloat16", "FP8 weights"}  # as the conditions of rows name them
NEAR = 0.05  # relative distance up to which a setting counts as the stated one
TOTAL_TOKENS = 15e6  # of all requests of a throughput in Figure 3 (App. B.2)
SETTINGS = ["input_tokens", "output_tokens", "total_tokens", "repeats", "memory_gib"]  # of serving points
_ENDS = {"lowest": "min", "highest": "max"}
# Settings that select a row, and the words for one that is not as stated.
_PLACES = {"input_tokens": "prompts", "memory_gib": "a limit in GiB", "depth": "a depth in percent", "at": "an axis"}
_COUNTED = ("capacity_ratio", "training_tokens")  # metrics that training does not change

Bounds = Sequence[float]
Cell = Content


class Claim(NamedTuple):
    """A line of claims.yaml, which explains each field; bounds are (least, most)."""

    id: str
    text: str
    place: str
    how: str
    stated: Bounds | str
    weaker: Bounds | None = None
    select: Cell = {}
    of: Sequence[Cell] = ({},)
    arguments: Sequence[Any] = ()
    unit: str = ""
    note: str = ""
    own: bool = False
    general: bool = False

    @property
    def cells(self) -> list[Cell]:
        """The numbers that judge it; none if it is judged by arithmetic."""
        shared = {"variant": "swiftkv-50", "kv_cache": "auto", **self.select}
        return [] if self.arguments else [{**shared, **cell} for cell in self.of]


_WHOLE = load_yaml(Path(__file__).with_name("claims.yaml"))
MODELS: Mapping[str, str] = _WHOLE["models"]
LENGTHS: Mapping[str, Bounds] = _WHOLE["lengths"]
SECTIONS = {title: [Claim(**line) for line in lines] for title, lines in _WHOLE["sections"].items()}
CLAIMS = [claim for lines in SECTIONS.values() for claim in lines]
ARTIFACTS = dict.fromkeys([PANEL, *(cell["artifact"] for claim in CLAIMS for cell in claim.cells)])
ARCHITECTURES = dict.fromkeys(name for claim in CLAIMS for name in claim.arguments if name in MODELS.values())


class Unmeasured(Exception):
    """A claim's numbers were not measured; the message is the reason."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Results(NamedTuple):
    """The results that claims are judged on.

    Attributes:
        tables: artifact -> the rows that show its records, with `SETTINGS` of their points.
        roles: role -> its model (name, title, published), None if there is none.
        absent: artifact -> why it is not made.
        chances: task -> the share that guessing gets right.
        stand_ins: variant -> the one that is made in its place at this scale.
    """

    tables: Mapping[str, pd.DataFrame]
    roles: Content
    absent: Mapping[str, str] = {}
    chances: Mapping[str, float] = {}
    stand_ins: Mapping[str, str] = {}

    def table(self, artifact: str) -> pd.DataFrame:
        """Return the rows of an artifact; raises `Unmeasured` if it is not made."""
        if artifact in self.absent:
            raise Unmeasured(f"{artifact} is not made: {self.absent[artifact]}")
        if artifact not in self.tables:
            raise Unmeasured(f"{artifact} is not among this scale's artifacts")
        return self.tables[artifact]

    def measured(self, cell: Cell) -> pd.DataFrame:
        """Return the measured rows of a number's artifact and model, without differences."""
        table, model = self.table(cell["artifact"]), self.roles[cell["role"]]
        return table[(table["source"] != "published") & (table["model"] == model["name"]) & (table["against"] == "")]

    def at_chance(self, cell: Cell) -> bool:
        """Return True for a benchmark or an average of them in which no variant is clearly better than guessing.

        A task of an average whose score of guessing is unknown counts as if guessing got all of it right.
        """
        rows, metric = self.measured(cell).dropna(subset="value"), cell["metric"]
        rows = rows[rows["metric"] == metric]
        if metric != "average":
            return metric in self.chances and rows["low"].max() <= 100 * self.chances[metric]
        tasks = {Path(file).stem for files in rows["file"] for file in files.split(";")}
        return bool(tasks) and rows["low"].max() <= 100 * fmean(self.chances.get(task, 1.0) for task in tasks)

    def on_another_model(self, claim: Claim) -> bool:
        """Return True if a claim about certain models was measured on others."""
        models = {cell["role"]: self.roles[cell["role"]] for cell in claim.cells}
        return not claim.general and any(model["published"] != MODELS[role] for role, model in models.items())

    def titles(self, claim: Claim) -> list[str]:
        """Return the titles of a claim's models; raises `Unmeasured` if a role has none, or two roles have the same."""
        roles: dict[str, str] = {}  # by model
        for role in dict.fromkeys(cell["role"] for cell in claim.cells):
            if (model := self.roles.get(role)) is None:
                raise Unmeasured(f"no model of this scale plays the role {role}")
            if (first := roles.setdefault(model["name"], role)) != role:
                raise Unmeasured(f"{model['title']} plays both the role {first} and the role {role}")
        return [self.roles[role]["title"] for role in roles.values()]

    def rows(self, claim: Claim, cell: Cell) -> tuple[pd.DataFrame, list[str]]:
        """Return the rows of a claim's number, and how their case differs from the stated one."""
        rows = self.measured(cell)
        for name in ("metric", "variant", "kv_cache", "point"):
            if name in cell:
                rows = rows[rows[name].isin(_listed(cell[name]))]
        rows = rows.assign(depth=100 * rows["at"] / (rows["at"].max() + 2))  # the last layer has no number
        variants = _listed(cell["variant"])
        deviations = [f"{self.stand_ins[name]} stands in for {name}" for name in variants if name in self.stand_ins]
        for name, words in _PLACES.items():
            if name in cell and len(rows):
                ends, values = _listed(cell[name]), rows[name]
                wanted, stated = ends[0], ends[-1]
                chosen = (
                    values.agg(_ENDS[wanted]) if wanted in _ENDS else min(values, key=lambda each: abs(each - wanted))
                )
                rows = rows[values == chosen]
                if not isinstance(stated, str) and abs(chosen - stated) > NEAR * stated:
                    deviations.append(f"{words} of {chosen:,g} in place of {stated:,g}")
        if "rate" in cell:
            lowest = rows["at"] == rows.groupby("point")["at"].transform("min")
            rows = rows[lowest == (cell["rate"] == "lowest")]
        known = rows[rows["value"].notna()] if claim.how != "status" else rows
        if not len(known):
            why = next(filter(None, [*rows["reason"], *deviations]), "not measured")
            raise Unmeasured(f"{cell['artifact']} has no {cell['metric']} of {' or '.join(variants)}: {why}")
        return known, [*self._deviations(cell, known), *deviations]

    def _deviations(self, cell: Cell, rows: pd.DataFrame) -> Iterator[str]:
        """Yield how rows differ from the sources' model, number format, training, benchmarks, machine and requests."""
        model, stated = self.roles[cell["role"]], MODELS[cell["role"]]
        if model["published"] != stated:
            yield f"{model['title']} in place of {stated}"
        conditions = rows["conditions"].max() or self.measured(cell)["conditions"].max()  # an average has none
        wanted = "FP8 weights" if "gpus" in cell and stated in IN_FP8 else "bfloat16"
        used = min(FORMATS.intersection(conditions.replace("dummy ", "").split(", ")), default=wanted)
        if used != wanted:
            yield f"{used} in place of {wanted}"
        if cell["metric"] == "average":
            count, files = rows[["n", "file"]].iloc[0]
            if count != BENCHMARKS:
                yield f"{', '.join(Path(file).stem for file in files.split(';'))} in place of {BENCHMARKS} benchmarks"
        trained = rows.loc[rows["variant"].str.startswith("swiftkv"), "variant"]
        if "gpus" not in cell and cell["metric"] not in _COUNTED and len(trained):
            cost = self.tables.get("training_cost", rows)
            cost = cost[(cost["metric"] == "training_tokens") & (cost["model"] == model["name"])]
            own = cost[cost["variant"].isin(trained)]
            tokens = (own if len(own) else cost)["value"].min()  # one scale trains all variants on about as many
            if tokens < (1 - NEAR) * TRAINING_TOKENS:
                yield f"{tokens:,.0f} training tokens in place of {TRAINING_TOKENS:,.0f} or more"
        if "gpus" in cell:
            machine = conditions.split(",")[0]
            if not machine.startswith(f"{cell['gpus']} × ") or "H100" not in machine:
                yield f"on {machine} in place of {cell['gpus']} × H100"
            if "dummy" in conditions:
                yield "requests to dummy weights in place of a model's"
            if "input_tokens" not in cell and (lengths := LENGTHS.get(cell["artifact"])):
                used = rows["input_tokens"].min(), rows["input_tokens"].max()
                if any(abs(ours - stated) > NEAR * stated for ours, stated in zip(used, lengths, strict=True)):
                    yield f"requests of {span(used)} prompt tokens in place of {span(lengths)}"
            outputs = rows["output_tokens"].dropna()
            if len(others := outputs[abs(outputs - OUTPUT_TOKENS) > NEAR * OUTPUT_TOKENS]):
                yield f"requests of {span(others)} output tokens in place of {OUTPUT_TOKENS}"
            total = (rows["total_tokens"] * rows["repeats"]).min()  # NaN where not all requests are sent at once
            if cell["artifact"] == "figure3" and total < (1 - NEAR) * TOTAL_TOKENS:
                yield f"requests of {total:,.0f} tokens in all in place of {TOTAL_TOKENS:,.0f}"
