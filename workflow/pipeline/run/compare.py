"""Compare a run with the reference run, record by record.

There are three tolerances. Whatever is counted or follows from the configuration is equal. What a model computes may differ as
another processor rounds (`ROUNDED`). Speed-ups over the baseline, measured in turns, may differ as another machine does
(`SPEEDUP`). Besides, signs are compared: a speed-up that is gone, a record without numbers, and a claim that one run supports
and the other contradicts are disagreements, whatever their size.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.artifacts.claims import CONTRADICTS, UNDECIDED, UNMEASURED
from pipeline.artifacts.metrics import some
from pipeline.artifacts.records import Record
from pipeline.config import Config
from pipeline.stages import STAGES
from pipeline.statistics import paired_difference, quadrature, ratio_of_turns
from swiftkv.errors import UserError

FOLDER = "resources/reference"
CLAIMS = "tables/claims.csv"  # verdicts of the run, kept beside its records


class Tolerance(NamedTuple):
    """How far a number may lie from the reference run's: the sum of the three.

    Attributes:
        share: of the reference's number.
        absolute: in the number's unit.
        errors: standard errors of the difference.
    """

    share: float = 1e-9
    absolute: float = 0.0
    errors: float = 0.0


EXACT = Tolerance()
# By `<measure>:<key>`, in which * is anything; the first that matches counts. KL, agreement and perplexity are of the same
# chats, so errors over chats do not count; two processors differed by 0.5 %, 0.9 points and 2.2 % at most.
ROUNDED = {
    "score:result": Tolerance(
        share=0.05, errors=3
    ),  # errors of the answers that changed; bits per byte have small ones
    "reading:result.members.*.tasks.*": Tolerance(share=0.1, absolute=1.0),  # of single answers
    "reading:result.heads.*": Tolerance(absolute=0.05),
    "*.answer_kl": Tolerance(share=0.08, absolute=0.005),  # of a third of the positions of kl
    "*.kl": Tolerance(share=0.05, absolute=0.003),
    "*.top1_agreement": Tolerance(absolute=0.025),
    "*.perplexity": Tolerance(share=0.06),
    "*.fp8_keys.largest": Tolerance(share=0.05),
    "similarity:result.simscore": Tolerance(absolute=0.01),
    "similarity:result.pairwise": Tolerance(absolute=0.01),
    "training:result.loss_first": Tolerance(share=0.02),
    "training:result.loss_last": Tolerance(share=0.1),
    "early_exit:result.alignment.above_threshold.positions": Tolerance(share=0.15),
    "early_exit:result.*.agreement": Tolerance(errors=2),
    "early_exit:result.decoding.exited": Tolerance(errors=2),
    "early_exit:result.decoding.equal_tokens": Tolerance(errors=2, absolute=0.02),  # one other token changes the rest
    "early_exit:result.decoding.time_ratio": Tolerance(errors=2, share=0.25),
}
# On the same processor two runs differed by up to 11 %, two processors by 1.55 to 1.85 at 2,000 tokens.
SPEEDUP = {True: Tolerance(errors=2, share=0.1), False: Tolerance(errors=2, share=0.25)}
NOT_COMPARED = re.compile(
    # names, words and answers, of which the numbers are compared
    r".*:(model\.title|settings\.\w+_example|result\.(what|criterion)|result\.answers\..*)"
    r"|answer:result\.(baseline_)?(text|tokens)"
    # threads, number format and libraries of a machine
    r"|.*:settings\.(threads|ranks|command|memory|dtype)|.*:engine\.(vllm|attention_backend|kv_cache_gib|dtype)"
    r"|kv_capacity:result\.kv_cache_bytes|training:result\.(attention|gpus|accelerator)"
    # errors and single values of what is compared as a whole
    r"|.*stderr|score:result\.questions\.values|fidelity:result\.chats\.(kl|nll|top1_agreement)|early_exit:.*\.bins\..*"
    # times and speeds
    r"|latency:result\..*|.*:result\..*(second|hours|_ms|_per_gpu|mfu_percent).*|decode:result\.steps"
)
# A record with another one of these is of another experiment.
EXPERIMENT = (
    "status", "measure", "model", "variant", "kv_cache", "weights", "checkpoint", "spec", "settings", "data",
)  # fmt: skip
MISSING = object()


class Number(NamedTuple):
    """A value and its standard error; None if it has none."""

    value: float
    stderr: float | None = None


@dataclass
class Comparison:
    """The outcome of comparing two runs.

    Attributes:
        agreed, uncompared: numbers of quantities.
        records: number of records that both runs have.
        disagreements: a sentence for each.
        machines: of the run and of the reference: processor, cores and libraries.
    """

    agreed: int = 0
    uncompared: int = 0
    records: int = 0
    disagreements: list[str] = field(default_factory=list)
    machines: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))

    def add(self, name: str, expected: Record, measured: Record) -> None:
        """Compare the record of the reference run at a path with the run's own."""
        self.records += 1
        for record, machines in zip((measured, expected), self.machines, strict=True):
            machines.add(_machine(record))
        if expected.status == "unavailable":
            self.uncompared += 1
        elif measured.status == "unavailable":
            self.disagreements.append(f"{name}: unavailable, and not in the reference: {measured.why}")
        elif self._same(name, EXPERIMENT, expected, measured):
            self._same(name, ("result", "engine", "cost"), expected, measured)
            self._speedups(name, expected, measured)

    def _same(self, name: str, sections: tuple[str, ...], expected: Record, measured: Record) -> bool:
        before = len(self.disagreements)
        for section in sections:
            found = dict(leaves(getattr(measured, section), section))
            for key, was in leaves(getattr(expected, section), section):
                if (within := tolerance(f"{expected.measure}:{key}")) is None:
                    self.uncompared += 1
                    continue
                stderr = _paired_stderr(expected, measured) if key == "result" else None
                label = "value" if key == "result" else key.removeprefix("result.")
                self._check(name, label, was, found.get(key, MISSING), within, stderr)
        return len(self.disagreements) == before

    def _speedups(self, name: str, expected: Record, measured: Record) -> None:
        same, found = _processor(expected) == _processor(measured), dict(_ratios(measured))
        for key, was in _ratios(expected):
            now = found.get(key, MISSING)
            if isinstance(now, Number) and _is_gain(was) and not _is_gain(now):
                self.disagreements.append(f"{name}: {key} is gone: {_shown(now)}, in the reference {_shown(was)}")
            else:
                self._check(name, key, was, now, SPEEDUP[same])

    def _check(self, name: str, key: str, was: Any, now: Any, within: Tolerance, stderr: float | None = None) -> None:
        if apart := _apart(key, was, now, within, stderr):
            self.disagreements.append(f"{name}: {apart}")
        else:
            self.agreed += 1


def compare(reference: Path, results: Path) -> Comparison:
    """Compare a run's records and verdicts with those of the reference run.

    Args:
        reference: folder with the reference's records.
        results: folder of the run's results.

    Raises:
        UserError: a record is damaged, or the run has none that the reference has.
    """
    found, wanted = Comparison(), records(reference)
    absent = [name for name in wanted if not (results / name).exists()]
    if len(absent) == len(wanted):
        raise UserError(f"{results} has none of the {len(wanted)} records of the reference run in {reference}")
    for name in wanted:
        if name not in absent:
            found.add(name, Record.read(reference / name), Record.read(results / name))
    if absent:
        found.disagreements.append(f"{len(absent)} of {len(wanted)} records are missing: {some(absent)}")
    before = verdicts(reference)
    for claim, line in verdicts(results).items():
        both = {line["verdict"], before.get(claim, line)["verdict"]}
        if len(both) == 2 and CONTRADICTS in both and not both & {UNDECIDED, UNMEASURED}:
            said = f"{line['verdict']}, in the reference {before[claim]['verdict']}"
            found.disagreements.append(f"claim {line['text']!r} ({line['place']}): {said}")
    return found


def report(found: Comparison, reference: Path, results: Path) -> str:
    """Return the lines of a comparison: disagreements, and how much was compared on which machines."""
    lines = list(found.disagreements)
    for name, place, machines in zip(("this run", "reference"), (results, reference), found.machines, strict=True):
        lines.append(f"{name}: {place}, {some(sorted(machines), 2)}")
    lines.append(
        f"{found.agreed:,} quantities of {found.records} records agree, {len(found.disagreements)} do not; not compared: "
        f"{found.uncompared:,}, such as times, words and settings of a machine (workflow/pipeline/run/compare.py)"
    )
    return "\n".join(lines)


def folder(root: Path, config: Config) -> Path:
    """Return the folder of a scale's reference run, which need not exist; it is called like the scale's results."""
    return root / FOLDER / Path(config.pathvars.results).name


def records(place: Path) -> list[str]:
    """Return the measurement records in a folder, as paths from there, without resolved models and shards of scores.

    Raises:
        UserError: there are none.
    """
    stages = [stage for name, stage in STAGES.items() if name not in ("score_shard", "resolve_model")]
    patterns = {re.sub(r"{\w+}", "*", stage.output) for stage in stages if stage.output.endswith(".json")}
    found = sorted(str(file.relative_to(place)) for pattern in patterns for file in place.glob(pattern))
    if not found:
        raise UserError(
            f"no reference run is shipped for this scale ({place} has no records); `make reference` keeps those of a "
            "finished run there"
        )
    return found


def verdicts(place: Path) -> dict[str, dict[str, str]]:
    """Read the lines of claims.csv by the claim's id; none where claims are not judged yet."""
    if not (place / CLAIMS).is_file():
        return {}
    with (place / CLAIMS).open(newline="", encoding="utf-8") as lines:
        return {line["id"]: line for line in csv.DictReader(lines)}


def tolerance(path: str) -> Tolerance | None:
    """Return the tolerance of a quantity by its `<measure>:<key>`; None if it is not compared."""
    if NOT_COMPARED.fullmatch(path):
        return None
    return next((one for where, one in ROUNDED.items() if fnmatchcase(path, where)), EXACT)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the quantities below a part of a record by their path: numbers, words, and lists of them."""
    if isinstance(value, Mapping):
        inside = dict(value)
        if isinstance(inside.get("value"), int | float) and "stderr" in inside:
            yield path, Number(inside.pop("value"), inside.pop("stderr"))
        for key, part in inside.items():
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for place, part in enumerate(value):
            yield from leaves(part, f"{path}.{place}")
    elif value is not None:
        yield path, value


def _apart(key: str, was: Any, now: Any, within: Tolerance, stderr: float | None) -> str | None:
    """Describe how two values are apart, of lists the first that are; None if they agree."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return next(filter(None, (_apart(f"{key}[{place}]", *both, within, stderr) for place, both in pairs)), None)
    values, allowed = [one.value if isinstance(one, Number) else one for one in (was, now)], 0.0
    if all(isinstance(one, int | float) for one in values):
        if isinstance(was, Number) and isinstance(now, Number) and stderr is None:
            stderr = quadrature(was.stderr, now.stderr)
        allowed = within.share * abs(values[0]) + within.absolute + within.errors * (stderr or 0.0)
        if abs(values[0] - values[1]) <= allowed:
            return None
    elif values[0] == values[1]:
        return None
    if now is MISSING:
        return f"{key} is missing, in the reference {_shown(was)}"
    most = "" if within is EXACT else f", at most {allowed:.3g} apart"
    return f"{key} is {_shown(now)}, in the reference {_shown(was)}{most}"


def _paired_stderr(expected: Record, measured: Record) -> float | None:
    """Standard error of the difference of two scores, question by question; None if they asked other questions."""
    first, second = expected.value("questions"), measured.value("questions")
    if first and second and first["sha256"] == second["sha256"]:
        return paired_difference(first["values"], second["values"]).stderr
    return None


def _ratios(record: Record) -> Iterator[tuple[str, Number]]:
    """Yield the speed-ups over the baseline in turns: of all requests of a point, or of batches of a size.

    Two of their standard errors are half of the 95 % interval.
    """
    # Answers of two machines are not equally long, so of an answer the first token is compared.
    unit = "ms" if record.measure in ("decode", "answer") else "seconds"
    sizes = record.value("batch_tokens") or record.value("batch_sizes") or [None]
    for place, size in enumerate(sizes):
        if turns := record.turns(unit, None if size is None else place):
            found = ratio_of_turns(*turns)
            stderr = None if found.low is None or found.high is None else (found.high - found.low) / 4
            yield "speed-up" + ("" if size is None else f" of batch {size}"), Number(found.value, stderr)


def _is_gain(speedup: Number) -> bool:
    return speedup.value - 2 * (speedup.stderr or 0.0) > 1


def _processor(record: Record) -> tuple[Any, ...]:
    hardware = record.provenance.get("hardware", {})
    threads = record.settings.get("threads")
    return hardware.get("processor"), hardware.get("cores"), tuple(hardware.get("gpus") or ()), threads


def _machine(record: Record) -> str:
    libraries = record.provenance.get("libraries", {})
    versions = [f"{name} {libraries[name]}" for name in ("torch", "vllm") if name in libraries]
    return ", ".join([record.device, *versions])


def _shown(value: Any) -> str:
    if isinstance(value, Number):
        return f"{value.value:.6g}" + (f" ± {value.stderr:.2g}" if value.stderr else "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]
