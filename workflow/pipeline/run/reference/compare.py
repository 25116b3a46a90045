"""Whether a run agrees with the reference run, record by record, within `tolerances`."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.artifacts.records import Record
from pipeline.artifacts.text import show, some
from pipeline.run.reference.folder import records, verdicts
from pipeline.run.reference.tolerances import ROUNDING, Tolerance, tolerance
from pipeline.statistics import mean_and_stderr, mean_of_turns, paired_difference, quadrature, ratio
from swiftkv.errors import UserError

_ASKED = ("model", "variant", "kv_cache", "weights", "checkpoint", "spec", "settings", "data")
_NAMES = ("model.title",)  # how it is called, not what it is
_MISSING = object()


class Number(NamedTuple):
    """A number and its standard error, None where it has none."""

    value: float
    stderr: float | None = None

    def __str__(self) -> str:
        error = "" if self.stderr is None else f" ± {show(self.stderr, 2)}"
        return f"{self.value:.6g}{error}"


@dataclass
class Comparison:
    """What came of comparing two runs.

    Attributes:
        agreed: quantities that agree.
        disagreements: a sentence for each that does not.
        uncompared: why something is not compared -> how many quantities.
        absent: records of the reference that the run lacks.
        unavailable: why one of both has no numbers -> the records.
        compared: records that both have.
        machines: of the run and of the reference: processor, cores and libraries.
    """

    agreed: int = 0
    disagreements: list[str] = field(default_factory=list)
    uncompared: Counter[str] = field(default_factory=Counter)
    absent: list[str] = field(default_factory=list)
    unavailable: dict[str, list[str]] = field(default_factory=dict)
    compared: int = 0
    machines: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))


def compare(reference: Path, results: Path) -> Comparison:
    """Compare the records of a run with those of the reference run.

    Args:
        reference: folder with the reference's records.
        results: folder of the run's results.

    Raises:
        UserError: a record is damaged, or the run has none that the reference has.
    """
    found = Comparison()
    for name in records(reference):
        if not (results / name).exists():
            found.absent.append(name)
            continue
        expected, measured = Record.read(reference / name), Record.read(results / name)
        found.compared += 1
        for record, machines in zip((measured, expected), found.machines, strict=True):
            machines.add(_machine(record))
        _compare_records(found, name, expected, measured)
    if not found.compared:
        raise UserError(f"{results} has none of the {len(found.absent)} records of the reference run in {reference}")
    return found


def report(found: Comparison, reference: Path, results: Path) -> str:
    """A comparison in words: what disagrees, how much was compared and what was not, and claims with other verdicts.

    Args:
        found: what `compare` found.
        reference, results: the folders that it compared.
    """
    lines = list(found.disagreements)
    for said, place, machines in zip(("this run", "reference"), (results, reference), found.machines, strict=True):
        lines.append(f"{said}: {place}, {some(sorted(machines), 2)}")
    lines.append(
        f"{found.agreed:,} quantities of {found.compared} records agree within their tolerances "
        f"(workflow/pipeline/run/reference/tolerances.py), {len(found.disagreements)} do not"
    )
    lines += [f"not compared: {count:,}, {why}" for why, count in found.uncompared.most_common()]
    if found.absent:
        lines.append(f"records of the reference that are not there yet: {len(found.absent)}, {some(found.absent)}")
    lines += [f"without numbers: {some(names)} of {why}" for why, names in found.unavailable.items()]
    before = verdicts(reference)
    lines += [
        f"judged otherwise: {line['text']} ({line['place']}): {line['verdict']}, in the reference {before[claim]['verdict']}"
        for claim, line in verdicts(results).items()
        if claim in before and line["verdict"] != before[claim]["verdict"]
    ]
    return "\n".join(lines)


def _compare_records(found: Comparison, name: str, expected: Record, measured: Record) -> None:
    if unavailable := [record for record in (measured, expected) if record.status == "unavailable"]:
        whose = "this run" if unavailable[0] is measured else "the reference"
        found.unavailable.setdefault(f"{whose}: {unavailable[0].why}", []).append(name)
        return
    both = expected, measured
    # Another experiment has other numbers, and so has one that ran out of memory.
    for sections, counted in ((("measure", "status"), True), (_ASKED, False)):
        apart = [
            line for section in sections for line in _section(found if counted else Comparison(), name, section, *both)
        ]
        if apart:
            found.disagreements += apart
            return
    for section in ("result", "engine", "cost"):
        found.disagreements += _section(found, name, section, *both)
    for key, (was, now) in _speedups(*both).items():
        found.disagreements += _judge(found, name, f"{expected.measure}:{key}", was, now, quadrature(was[1], now[1]))
    for record, whose in ((measured, ""), (expected, " of the reference")):
        for key, said, follows in _arithmetic(record):
            if math.isclose(said, follows, rel_tol=1e-6, abs_tol=1e-12):
                found.agreed += 1
            else:
                found.disagreements.append(
                    f"{name}: {key}{whose} is {said:.6g}, but {follows:.6g} by the record's own samples"
                )


def _section(found: Comparison, name: str, section: str, expected: Record, measured: Record) -> list[str]:
    """Sentences on the quantities of a section that disagree; the others are counted."""
    there = dict(leaves(getattr(measured, section), section))
    return [
        sentence
        for key, was in leaves(getattr(expected, section), section)
        if key not in _NAMES
        for now in [there.get(key, _MISSING)]
        for sentence in _judge(
            found, name, f"{expected.measure}:{key}", was, now, _stderr(key, expected, measured, was, now)
        )
    ]


def _judge(found: Comparison, name: str, path: str, was: Any, now: Any, stderr: float | None) -> list[str]:
    """Nothing where a quantity agrees or is not compared, else a sentence."""
    within = tolerance(path)
    if not within.compared:
        found.uncompared[within.reason] += 1
        return []
    key = path.partition(":")[2].removeprefix("result.")
    key = "value" if key == "result" else key
    if now is _MISSING:
        return [f"{name}: {key} is missing, in the reference {_shown(was)}"]
    if (sentence := _apart(key, was, now, within, stderr)) is None:
        found.agreed += 1
        return []
    return [f"{name}: {sentence} ({within.reason})"]


def _apart(key: str, was: Any, now: Any, within: Tolerance, stderr: float | None) -> str | None:
    """How two values are apart, of lists the first that are; None where they agree."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        return next(filter(None, (_apart(f"{key}[{place}]", *both, within, stderr) for place, both in pairs)), None)
    first, second = _number(was), _number(now)
    values = f"{key} is {_shown(now)}, in the reference {_shown(was)}"
    if first is None or second is None:
        return None if was == now else values
    distance = abs(first - second)
    allowed = within.absolute + within.share * abs(first) + within.errors * (stderr or 0.0)
    if distance <= allowed:
        return None
    exact = within.share <= ROUNDING and not within.absolute and not within.errors
    return values if exact else f"{values}: {distance:.3g} apart, {allowed:.3g} at most"


def _number(value: Any) -> float | None:
    if isinstance(value, Number):
        return value.value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _stderr(key: str, expected: Record, measured: Record, was: Any, now: Any) -> float | None:
    """The standard error of the difference of two values: of answers to the same questions, pair by pair."""
    if key == "result" and expected.measure == "score":
        asked = [record.value("questions") for record in (expected, measured)]
        if None not in asked and asked[0]["sha256"] == asked[1]["sha256"]:
            return paired_difference(*(each["values"] for each in asked)).stderr
    errors = [value.stderr if isinstance(value, Number) else None for value in (was, now)]
    return quadrature(*errors)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The quantities below a part of a record by their path: numbers, words, and lists of them."""
    if isinstance(value, Mapping):
        inside = dict(value)
        if isinstance(inside.get("value"), (int, float)) and "stderr" in inside:
            yield path, Number(inside.pop("value"), inside["stderr"])
        for key, part in inside.items():
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for place, part in enumerate(value):
            yield from leaves(part, f"{path}.{place}")
    elif value is not None:
        yield path, value


def _speedups(expected: Record, measured: Record) -> dict[str, tuple[Number, Number]]:
    """Ratios to the baseline that both records have, each with the error of its turns."""
    same = _processor(expected) == _processor(measured)
    where = f"speedup on {'the same' if same else 'another'} processor"
    both = [dict(_ratios(record)) for record in (expected, measured)]
    return {f"{where}{key}": (both[0][key], both[1][key]) for key in both[0].keys() & both[1].keys()}


def _ratios(record: Record) -> Iterator[tuple[str, Number]]:
    """By what they are of: all requests of a point, or batches of a size."""
    # Answers of two machines are not equally long, so of an answer it is the first token that is compared.
    unit = "ms" if record.measure in ("decode", "answer") else "seconds"
    sizes: Sequence[int | None] = record.value("batch_tokens") or record.value("batch_sizes") or [None]
    for place, size in enumerate(sizes):
        if turns := record.speedups(unit, None if size is None else place):
            yield "" if size is None else f", batch {size}", Number(*mean_of_turns(turns))


def _arithmetic(record: Record) -> Iterator[tuple[str, float, float]]:
    """Numbers of a record that follow from others in it: what it is, what is said, what follows."""
    result = record.result
    if questions := record.value("questions"):
        mean, stderr = mean_and_stderr(questions["values"])
        yield "value", result["value"], mean
        if stderr is not None:
            yield "its error", result["stderr"], stderr
    if chats := record.value("chats"):
        sums = {"kl": "kl", "top1_agreement": "top1_agreement", "perplexity": "nll"}
        for name in filter(result.get, sums):
            mean = ratio(chats[sums[name]], chats["positions"])["value"]
            yield name, result[name]["value"], math.exp(mean) if name == "perplexity" else mean
    if "tokens_per_second" in result and "tokens" in result:
        yield "tokens_per_second", result["tokens_per_second"], result["tokens"] / result["seconds"]
    if "hours" in result:
        yield "hours", result["hours"], result["seconds"] / 3600
    samples, where = record.value("samples_seconds"), record.value("seconds")
    if record.measure == "decode":
        samples, where = record.value("samples_ms"), record.value("tpot_ms")
    if samples and isinstance(where, Mapping):
        for said, times in zip(where["median"], samples, strict=True):
            yield "a median", said, statistics.median(times)
    elif samples:
        yield "seconds", where, statistics.median(samples)


def _processor(record: Record) -> tuple[Any, ...]:
    hardware = record.provenance.get("hardware", {})
    return hardware.get("processor"), hardware.get("cores"), tuple(hardware.get("gpus") or ())


def _machine(record: Record) -> str:
    libraries = record.provenance.get("libraries", {})
    versions = [f"{name} {libraries[name]}" for name in ("torch", "vllm") if name in libraries]
    return ", ".join([record.device, *versions])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        shown = ", ".join(_shown(part) for part in itertools.islice(value, 3))
        return f"[{shown}{', ...' if len(value) > 3 else ''}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
