"""Compare a run with the reference run, record by record.

Counts and values that follow from the configuration must be equal. Values that a model computes may differ by the rounding of
another processor (`ROUNDED`), and speed-ups over the baseline, measured in turns, as on another machine (`SPEEDUP`). A speed-up
that is gone, a record without numbers, and a claim with the opposite verdict are disagreements, whatever their size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipeline.artifacts import contents
from pipeline.artifacts.claims import OTHER, UNDECIDED, UNMEASURED
from pipeline.artifacts.frame import known_tasks, saved_bits
from pipeline.artifacts.metrics import INPUTS, some
from pipeline.artifacts.records import Record
from pipeline.config import Config
from pipeline.statistics import Estimate, paired_difference, quadrature, ratio_of_turns
from swiftkv.errors import UserError

FOLDER = "resources/reference"
CLAIMS = "tables/claims.csv"  # verdicts of the run, kept beside its records


class Tolerance(NamedTuple):
    """The largest difference from the number of the reference run: the sum of the three.

    Attributes:
        share: of the reference's number.
        absolute: in the number's unit.
        errors: standard errors of the difference.
    """

    share: float = 1e-9
    absolute: float = 0.0
    errors: float = 0.0


EXACT = Tolerance()
# By `<measure>:<key>` with wildcards; the first that matches counts. KL, agreement and perplexity are of the same chats, so
# errors over chats do not count; two processors differed by 0.5 %, 0.9 points and 2.2 % at most.
ROUNDED = {
    # Errors are of the answers that changed; bits per byte have small ones.
    "score:result": Tolerance(share=0.05, errors=3),
    "*.answer_kl": Tolerance(share=0.08, absolute=0.005),  # of a third of the positions of kl
    "*.kl": Tolerance(share=0.05, absolute=0.003),
    "*.top1_agreement": Tolerance(absolute=0.025),
    "*.perplexity": Tolerance(share=0.06),
    "*.fp8_keys.largest": Tolerance(share=0.05),
    "similarity:result.*": Tolerance(absolute=0.01),
    "training:result.loss_first": Tolerance(share=0.02),
    "training:result.loss_last": Tolerance(share=0.1),
    "early_exit:result.alignment.above_threshold.positions": Tolerance(share=0.15),
    "early_exit:result.decoding.time_ratio": Tolerance(errors=2, share=0.25),
    "early_exit:result.*": Tolerance(errors=2, absolute=0.02),  # one other token changes the rest of an answer
}
# Two runs differed by up to 11 % on the same processor, two processors by 1.55 to 1.85 at 2,000 tokens.
SPEEDUP = Tolerance(errors=2, share=0.25)
KEPT = Tolerance(share=0.05, absolute=0.03)  # of the bits that texts save, summed over answers
NOT_COMPARED = re.compile(
    # names, words and answers; their numbers are compared
    r".*:(model\.title|settings\.\w+_example|result\.(what|criterion)|result\.answers\..*)"
    r"|answer:result\.baseline_answers\..*"
    # threads, number format and libraries of a machine
    r"|.*:settings\.(threads|ranks|command|memory|dtype)|.*:engine\.(vllm|attention_backend|kv_cache_gib|dtype)"
    r"|kv_capacity:result\.kv_cache_bytes|training:result\.(attention|gpus|accelerator)"
    # errors, and single values that are compared as a whole
    r"|.*stderr|score:result\.questions\.values|fidelity:result\.chats\.(kl|nll|top1_agreement)|early_exit:.*\.bins\..*"
    r"|reading:result\.members\..*\.tasks\..*"
    # settings and results of tasks that earlier versions had
    r"|reading:(settings\.(induction|retrieval|synthetic)|result\.(heads|tasks\.(induction|retrieval))\b.*)"
    # times and speeds
    r"|latency:result\..*|.*:result\..*(second|hours|other_cores|taken|_ms|_per_gpu|mfu_percent|decode_only).*|decode:result\.steps"
)
# A record with another one of these is of another experiment.
EXPERIMENT = (
    "status", "measure", "model", "variant", "kv_cache", "weights", "checkpoint", "spec", "settings", "data",
)  # fmt: skip


@dataclass
class Comparison:
    """The outcome of comparing two runs.

    Attributes:
        agreed, uncompared: numbers of quantities.
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

    def add(self, name: str, expected: Record, measured: Record) -> None:
        """Compare the record of the reference run at a path with the run's own."""
        self.records += 1
        self.machines.add(measured.device)
        self.reference_machines.add(expected.device)
        if expected.status == "unavailable":
            self.uncompared += 1
        elif measured.status == "unavailable":
            self.disagreements.append(f"{name}: unavailable, and not in the reference: {measured.reason}")
        elif self._same(name, EXPERIMENT, expected, measured):
            self._same(name, ("result", "engine", "cost"), expected, measured)
            self._speedups(name, expected, measured)
            kept = dict(_kept(measured))
            for key, was in _kept(expected):
                self._check(f"{name}: {key}", was, kept.get(key), KEPT)

    def _same(self, name: str, sections: tuple[str, ...], expected: Record, measured: Record) -> bool:
        """Compare sections of two records; return True if all agree."""
        before = len(self.disagreements)
        was, now = (dict(leaves({part: getattr(record, part) for part in sections})) for record in (expected, measured))
        for key in was:
            if (within := tolerance(f"{expected.measure}:{key}")) is None:
                self.uncompared += 1
                continue
            stderr = _paired_stderr(expected, measured) if key == "result.value" else None
            if stderr is None and key.endswith(".value"):
                stderr = quadrature(*(side.get(f"{key.removesuffix('value')}stderr") for side in (was, now)))
            self._check(
                f"{name}: {key.removeprefix('result.').removesuffix('.value')}", was[key], now.get(key), within, stderr
            )
        return len(self.disagreements) == before

    def _speedups(self, name: str, expected: Record, measured: Record) -> None:
        ratios = dict(_ratios(measured))
        for key, was in _ratios(expected):
            now = ratios.get(key)
            # A noisy machine may show the same gain with less certainty, so half of the gain has to be lost too.
            if now and _least(was) > 1 >= _least(now) and now.value - 1 < (was.value - 1) / 2:
                both = f"{_text(now.value)}, at least {_text(_least(now))}, in the reference {_text(was.value)}"
                self.disagreements.append(f"{name}: {key} is gone: {both}")
            else:
                stderr = quadrature(_stderr(was), now and _stderr(now))
                self._check(f"{name}: {key}", was.value, now and now.value, SPEEDUP, stderr)

    def _check(self, name: str, was: Any, now: Any, within: Tolerance, stderr: float | None = None) -> None:
        if difference := _difference(name, was, now, within, stderr or 0.0):
            self.disagreements.append(difference)
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
    for name in wanted:
        if name not in absent:
            comparison.add(name, Record.read(reference / name), Record.read(results / name))
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
        f"not compared: {comparison.uncompared:,}, such as times, words and settings of a machine "
        "(workflow/pipeline/run/compare.py)",
    ]
    return "\n".join(lines)


def folder(root: Path, config: Config) -> Path:
    """Return the folder of a scale's reference run, named like its results; it need not exist."""
    return root / FOLDER / Path(config.pathvars.results).name


def inputs(config: Config, targets: Collection[str]) -> list[str]:
    """Return the records and resolved models that some artifacts are made of, as paths from the folder of results."""
    results, names = Path(config.pathvars.results), contents.named(config, targets)
    files = [Path(file) for name in names for group in contents.needs(config, name).values() for file in group]
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


def tolerance(path: str) -> Tolerance | None:
    """Return the tolerance of a quantity by its `<measure>:<key>`; None if it is not compared."""
    path = path.removesuffix(".value")
    if NOT_COMPARED.fullmatch(path):
        return None
    return next((one for where, one in ROUNDED.items() if fnmatchcase(path, where)), EXACT)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the quantities of a part of a record by their path: numbers, words, and lists of them."""
    if isinstance(value, dict) or isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{key}".removeprefix("."))
    elif value is not None:
        yield path, value


def _difference(name: str, was: Any, now: Any, within: Tolerance, stderr: float) -> str:
    """Describe the difference of two values, of lists the first one; empty if they agree."""
    if was == now:
        return ""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return next(filter(None, (_difference(f"{name}[{at}]", *pair, within, stderr) for at, pair in pairs)), "")
    most = ""
    if isinstance(was, int | float) and isinstance(now, int | float):
        allowed = within.share * abs(was) + within.absolute + within.errors * stderr
        if abs(was - now) <= allowed:
            return ""
        most = "" if within is EXACT else f", at most {allowed:.3g} apart"
    return f"{name} is {'missing' if now is None else _text(now)}, in the reference {_text(was)}{most}"


def _paired_stderr(expected: Record, measured: Record) -> float | None:
    """Return the standard error of the difference of two scores on the same questions; None if these differ."""
    first, second = expected.value("questions"), measured.value("questions")
    if first and second and first["sha256"] == second["sha256"]:
        return paired_difference(first["values"], second["values"]).stderr
    return None


def _ratios(record: Record) -> Iterator[tuple[str, Estimate]]:
    """Yield the speed-ups over the baseline that were measured in turns: of a point, or by batch size."""
    # Answers of two machines differ in length, so their times to the first token are compared.
    unit = "ms" if record.measure in ("decode", "answer") else "seconds"
    sizes = record.value("batch_tokens") or record.value("batch_sizes") or [None]
    for place, size in enumerate(sizes):
        if turns := record.turns(unit, None if size is None else place):
            yield "speed-up" + ("" if size is None else f" of batch {size}"), ratio_of_turns(*turns)


def _kept(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the share that each rewired model of a reading keeps of each task."""
    model, *members = record.value("members") or [None]
    for member in members:
        for task in known_tasks(record):
            saved, whole = (math.fsum(saved_bits(model, each, task)) for each in (member, model))
            yield f"kept of {task} at l = {member['layer']}", saved / whole


def _least(ratio: Estimate) -> float:
    """Return the lower end of the interval, or the value if there is none."""
    return ratio.value if ratio.low is None else ratio.low


def _stderr(ratio: Estimate) -> float | None:
    """Return a quarter of the 95 % interval."""
    return None if ratio.low is None or ratio.high is None else (ratio.high - ratio.low) / 4


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]
