"""Compare a run with the reference run, number by number.

Settings and specs must be equal, numbers of the frame equal within the `tolerance` of their metric (metrics.yaml). A speed-up
that is gone, a record without numbers, and a claim with the opposite verdict are disagreements, whatever their size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.artifacts import contents
from pipeline.artifacts.claims import OTHER, UNDECIDED, UNMEASURED
from pipeline.artifacts.frame import interval, measured, scale_of
from pipeline.artifacts.metrics import INPUTS, METRICS, Metric
from pipeline.artifacts.records import Record
from pipeline.config import Config
from pipeline.statistics import paired_difference
from pipeline.text import some
from swiftkv.errors import UserError

FOLDER = "resources/reference"
CLAIMS = "tables/claims.csv"  # verdicts of the run, kept beside its records
# A record with another one of these is of another experiment.
EXPERIMENT = (
    "status", "measure", "model", "variant", "kv_cache", "weights", "checkpoint", "spec", "settings", "data",
    "engine", "cost",
)  # fmt: skip
# Parts that differ between machines, are words, or only earlier versions have; and parts of results that are drawn or counted.
OF_MACHINES = re.compile(
    r"model\.title|settings\.(\w+_example|threads|ranks|command|memory|dtype|induction|retrieval|synthetic)(\..*)?"
    r"|engine\.(vllm|attention_backend|kv_cache_gib|dtype)|result\.tasks\.(induction|retrieval)\b.*"
)
DRAWN = re.compile(r"result\.(.*\.)?(sha256|asked|documents|tokens|n_total|num_prompts|prompts|repeats)")
# Columns that tell the rows of a frame apart
KEYS = ["file", "variant", "kv_cache", "point", "part", "at", "metric"]


@dataclass
class Comparison:
    """The outcome of comparing two runs.

    Attributes:
        agreed, uncompared: how many numbers.
        records: number of records that both runs have.
        disagreements: a sentence for each.
        machines, reference_machines: of the run and of the reference: processor and cores, or GPU.
    """

    agreed: int = 0
    uncompared: int = 0
    records: int = 0
    disagreements: list[str] = field(default_factory=list)
    machines: set[str] = field(default_factory=set)
    reference_machines: set[str] = field(default_factory=set)

    def add(self, name: str, expected: Record, own: Record) -> bool:
        """Compare the settings of a record of the reference run with those of the run's own; return True if they are equal."""
        self.records += 1
        self.machines.add(own.device)
        self.reference_machines.add(expected.device)
        if expected.status == "unavailable":
            self.uncompared += 1
            return False
        if own.status == "unavailable":
            self.disagreements.append(f"{name}: unavailable, and not in the reference: {own.reason}")
            return False
        before, now = (_experiment(record) for record in (expected, own))
        differing = [key for key in before if now.get(key) != before[key]]
        self.disagreements += [f"{name}: {_difference(key, before[key], now.get(key))}" for key in differing]
        self.agreed += len(before) - len(differing)
        return not differing

    def add_numbers(self, names: Sequence[str], expected: Sequence[Record], own: Sequence[Record]) -> None:
        """Compare the numbers of records of the same experiments, in the order of their names."""
        errors = dict(zip(names, map(_paired_stderr, expected, own), strict=True))
        before, now = (
            measured(records).replace(
                {"file": {record.file: name for record, name in zip(records, names, strict=True)}}
            )
            for records in (expected, own)
        )
        rows = before.merge(now, how="left", on=KEYS, suffixes=("", "_now"))
        for row in rows.to_dict("records"):
            about = METRICS.get(row["metric"], METRICS["average"])  # scores have the names of their tasks
            if about.tolerance is None or pd.isna(row["value"]):
                self.uncompared += 1
            elif difference := _disagreement(row, about, errors[row["file"]]):
                self.disagreements.append(f"{row['file']}: {difference}")
            else:
                self.agreed += 1


def compare(reference: Path, results: Path, only: Collection[str] | None = None) -> Comparison:
    """Compare a run's records and verdicts with those of the reference run.

    Args:
        reference: folder with the reference's records.
        results: folder of the run's results.
        only: records to compare, as paths in both; None means all.

    Raises:
        UserError: a record is damaged, or the run has none that the reference has.
    """
    comparison, wanted = Comparison(), [name for name in records(reference) if only is None or name in only]
    absent = [name for name in wanted if not (results / name).exists()]
    if wanted and len(absent) == len(wanted):
        raise UserError(f"{results} has none of the {len(wanted)} records of the reference run in {reference}")
    both = (
        (name, *(Record.read(place / name) for place in (reference, results))) for name in wanted if name not in absent
    )
    if alike := [each for each in both if comparison.add(*each)]:
        comparison.add_numbers(*zip(*alike, strict=True))
    if absent:
        comparison.disagreements.append(f"{len(absent)} of {len(wanted)} records are missing: {some(absent)}")
    before = verdicts(reference)
    for claim, line in verdicts(results).items():
        now, then = (one.get("orientation") or one["verdict"] for one in (line, before.get(claim, line)))
        both = {now, then}
        if len(both) == 2 and OTHER in both and not both & {UNDECIDED, UNMEASURED}:
            turned = f"{now}, in the reference {then}"
            comparison.disagreements.append(f"claim {line['text']!r} ({line['place']}): {turned}")
    return comparison


def report(comparison: Comparison, reference: Path, results: Path) -> str:
    """Return the lines of a comparison: disagreements, machines, and numbers of quantities."""
    lines = [
        *comparison.disagreements,
        f"this run: {results}, {some(sorted(comparison.machines), 2)}",
        f"reference: {reference}, {some(sorted(comparison.reference_machines), 2)}",
        f"{comparison.agreed:,} quantities of {comparison.records} records agree, {len(comparison.disagreements)} do not; "
        f"not compared: {comparison.uncompared:,}, such as times and words "
        "(without a tolerance in workflow/pipeline/artifacts/metrics.yaml)",
    ]
    return "\n".join(lines)


def folder(root: Path, config: Config) -> Path:
    """Return the folder of a scale's reference run, named like its results; it need not exist."""
    return root / FOLDER / Path(config.pathvars.results).name


def inputs(config: Config, targets: Collection[str]) -> list[str]:
    """Return the records and resolved models that some artifacts are made of, as paths from the folder of results."""
    results, names = Path(config.pathvars.results), contents.named(config, targets)
    files = [Path(file) for name in names for group in contents.input_files(config, name).values() for file in group]
    measured = (file for file in files if file.suffix == ".json" and results in file.parents)
    return [str(file.relative_to(results)) for file in dict.fromkeys(measured)]


def records(place: Path) -> list[str]:
    """Return the measurement records in a folder of results, as paths from there.

    Raises:
        UserError: there are none.
    """
    files = (file for folder in set(INPUTS.values()) for file in (place / folder).rglob("*.json"))
    paths = sorted(str(file.relative_to(place)) for file in files)
    if not paths:
        raise UserError(
            f"no reference run is shipped for this scale ({place} has no records); `make reference` keeps those of a "
            "finished run there"
        )
    return paths


def verdicts(place: Path) -> dict[str, dict[str, str]]:
    """Read the lines of claims.csv by the claim's id; empty if claims are not judged yet."""
    if not (place / CLAIMS).is_file():
        return {}
    return pd.read_csv(place / CLAIMS, dtype=str, index_col="id", keep_default_na=False).to_dict("index")


def _experiment(record: Record) -> dict[str, Any]:
    """Return by their path the settings of a record, without those of its machine, and what was drawn for it."""
    nested = {part: value for part in (*EXPERIMENT, "result") if (value := getattr(record, part)) is not None}
    return {
        key: value
        for key, value in pd.json_normalize(nested).to_dict("records")[0].items()
        if value is not None
        and not OF_MACHINES.fullmatch(key)
        and (not key.startswith("result.") or DRAWN.fullmatch(key))
    }


def _difference(name: str, was: Any, now: Any) -> str:
    return f"{name} is {'missing' if now is None else _text(now)}, in the reference {_text(was)}"


def _disagreement(row: Mapping[Any, Any], about: Metric, paired: float | None) -> str:
    """Describe how a number differs from the reference's by more than its metric tolerates; empty if it does not.

    Args:
        row: of two merged frames; the own run's columns end in `_now`.
        paired: standard error of the difference; if None, it follows from both intervals, each of which spans four.
    """
    was, now, within = interval(row), interval(row, "_now"), about.tolerance or {}
    name = row["metric"] + (f" of {row['point']}" if row["point"] else "")
    name += "" if pd.isna(row["at"]) else f" at {row['at']:g}"
    if pd.isna(now.value):
        return _difference(name, was.value, None)
    if about.unit == "×":
        gains = [one.inverse() if row["metric"] == "decode_ratio" else one for one in (was, now)]
        least, own = (one.value if one.low is None else one.low for one in gains)
        # A noisy machine may show the same gain with less certainty, so half of the gain has to be lost too.
        if least > 1 >= own and gains[1].value - 1 < (gains[0].value - 1) / 2:
            return f"{name} is gone: {_text(now.value)}, in the reference {_text(was.value)}"
    elif not pd.isna(row["n"]) and row["n"] != row["n_now"]:
        return _difference(f"n of {name}", row["n"], row["n_now"])
    if paired is None:
        paired = (
            math.hypot(*(one.high - one.low for one in (was, now) if one.low is not None and one.high is not None)) / 4
        )
    allowed = within.get("share", 1e-9) * abs(was.value) + within.get("absolute", 0) + within.get("errors", 0) * paired
    if abs(was.value - now.value) <= allowed:
        return ""
    return f"{_difference(name, was.value, now.value)}, at most {allowed:.3g} apart"


def _paired_stderr(expected: Record, measured: Record) -> float | None:
    """Return the standard error of the difference of two scores on the same questions, in their unit; None if these differ."""
    first, second = expected.value("questions"), measured.value("questions")
    if first and second and first["sha256"] == second["sha256"]:
        stderr = paired_difference(first["values"], second["values"]).stderr
        return stderr and stderr * scale_of(expected.settings["metric"])[0]
    return None


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]
