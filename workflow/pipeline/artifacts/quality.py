"""Rows that a table makes of its records: reductions of a variant, averages over tasks, and paired differences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.artifacts.frame import Row, in_bits, outcomes
from pipeline.artifacts.labels import heads_label
from pipeline.artifacts.metrics import METRICS, NONE, percent
from pipeline.artifacts.published import Case
from pipeline.artifacts.records import Record
from pipeline.statistics import Estimate, estimate, exact, flips, mean_of, paired_difference, ratio
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

Entry = Mapping[str, Any]
Found = Mapping[tuple[str, ...], Record]
CLOSENESS = {"kl": 1, "top1_agreement": 100}  # measures of closeness that add up over positions, and their factor


class Line(NamedTuple):
    """The case of a table's row, and the title of its part."""

    case: Case
    part: str | None = None


def lines(entry: Entry) -> list[Line]:
    """The rows of an entry, in its order."""
    whole = {"title": None, "models": [model["name"] for model in entry["models"]], "cases": entry.get("cases", [])}
    return [
        Line(Case(model, *case), part["title"])
        for part in entry.get("parts", [whole])
        for model in part["models"] or [None]
        for case in part["cases"]
    ]


def accuracies(entry: Entry) -> list[str]:
    """The tasks of an entry that are not measured in bits per byte."""
    return [task for task, settings in entry.get("tasks", {}).items() if not in_bits(settings["metric"])]


def derived(entry: Entry, records: Sequence[Record]) -> Iterator[Row]:
    """Reductions, averages and differences of the cases of an entry."""
    cases = [case for case in dict.fromkeys(line.case for line in lines(entry)) if case.model is not None]
    found = by_case(records)
    tasks = averaged(entry, cases, found)
    specs = {(record.model["name"], record.variant): record.spec for record in records}
    yield from _reductions(entry, cases, specs)
    yield from _averages(cases, tasks, found)
    for first, second in itertools.combinations(cases, 2):
        yield from _differences(entry, first, second, tasks, found)


def by_case(records: Sequence[Record]) -> Found:
    """Records by model, variant, KV-cache format, and task or measure."""
    return {
        (record.model["name"], *record.case, record.what if record.measure == "score" else record.measure): record
        for record in records
    }


def _row(case: Case, metric: str, value: Estimate, **more: Any) -> Row:
    unit = METRICS[metric].unit if metric in METRICS else ""
    return {
        "source": "measured",
        **case._asdict(),
        "metric": metric,
        **value._asdict(),
        "unit": unit,
        "status": "ok",
    } | more


def _reductions(entry: Entry, cases: Sequence[Case], specs: Mapping[tuple[str, str], Any]) -> Iterator[Row]:
    """The share of layers that a prompt skips, and of the baseline's bfloat16 cache that is saved; FP8 halves what is left.

    Scales are not counted, as in the paper. The cache of a variant with KV heads of its own depends on the teacher's.
    """
    for case in cases:
        fields = entry["specs"][case.model].get(case.variant)
        spec = SwiftKVSpec(**fields) if fields else None
        prefill = exact(100 * spec.prefill_reduction) if spec else exact(0.0)
        text = f"{percent(spec.prefill_reduction)} (l = {spec.num_key_value_layers})" if spec else NONE
        yield _row(case, "prefill_reduction_percent", prefill, text=text, source="arithmetic")
        if measured := specs.get((case.model, case.variant)):
            saved = measured["kv_cache_reduction"]
        elif spec and spec.num_key_value_heads:
            continue
        else:
            saved = spec.kv_cache_reduction(1) if spec else 0.0
        saved = 1 - (1 - saved) / 2 if case.kv_cache == "fp8" else saved
        group = spec.key_value_group_size if spec else 1
        text = f"{group}-way ({percent(saved)})" if group > 1 else f"{NONE} ({percent(saved)})" if saved else NONE
        text += heads_label(fields)
        yield _row(case, "kv_cache_reduction_percent", exact(100 * saved), text=text, source="arithmetic")


def averaged(entry: Entry, cases: Sequence[Case], found: Found) -> list[str]:
    """The accuracies that averages are over: every case has them which has any, so that averages can be compared.

    With `average: above chance`, only those in which the baseline is clearly better than guessing.
    """
    tasks = accuracies(entry)

    def scored(case: Case, task: str) -> bool:
        record = found.get((*case, task))
        return record is not None and record.ok

    with_some = [case for case in cases if any(scored(case, task) for task in tasks)]
    shared = [task for task in tasks if with_some and all(scored(case, task) for case in with_some)]
    if entry.get("average") == "above chance":
        baseline = next((case for case in with_some if case.variant == "baseline" and case.kv_cache == "auto"), None)
        shared = [task for task in shared if baseline and _above_chance(found[*baseline, task], entry["tasks"][task])]
    return shared


def _above_chance(record: Record, task: Mapping[str, Any]) -> bool:
    low = estimate(record.result["value"], record.result["stderr"], record.result["n"]).low
    return low is not None and low > task.get("chance", 0.0)


def _averages(cases: Sequence[Case], tasks: Sequence[str], found: Found) -> Iterator[Row]:
    """Yield the mean over tasks in percent; their questions are independent samples, n is the number of tasks."""
    for case in cases:
        scores = [found[*case, task] for task in tasks if (*case, task) in found]
        if tasks and len(scores) == len(tasks) and all(record.ok for record in scores):
            mean = mean_of([Estimate(record.result["value"], record.result["stderr"]) for record in scores])
            yield _row(case, "average", mean.scaled(100), n=len(tasks), file=_files(scores))
        elif gaps := [record for record in scores if not record.ok]:
            yield _row(case, "average", Estimate(None), status=gaps[0].status, reason=gaps[0].why)  # type: ignore[arg-type]


def _differences(entry: Entry, first: Case, second: Case, tasks: Sequence[str], found: Found) -> Iterator[Row]:
    """First minus second on the same questions and chats, in the unit of each score; `text` has the answers that changed."""
    against = {"against_model": second.model, "against": second.variant, "against_kv_cache": second.kv_cache}
    apart: dict[str, Estimate] = {}
    for task, settings in entry.get("tasks", {}).items():
        sides = [found.get((*case, task)) for case in (first, second)]
        if (difference := _paired(*sides)) is None:
            continue
        apart[task] = difference
        right = [outcomes(record) for record in sides if record is not None]
        changed = None if None in right else f"({100 * flips(*right):.0f}%)"
        bits = in_bits(settings["metric"])
        unit = "bits/byte" if bits else "%"
        n = sides[0].result["n"] if sides[0] else None
        more = against | {"unit": unit, "file": _files(sides)}
        yield _row(first, task, difference.scaled(1 if bits else 100), text=changed, n=n, **more)
    if tasks and all(task in apart for task in tasks):
        mean = mean_of([apart[task] for task in tasks])
        asked = [found[*case, task] for case in (first, second) for task in tasks]
        yield _row(first, "average", mean.scaled(100), n=len(tasks), file=_files(asked), **against)
    for measure, factor in CLOSENESS.items():
        sides = [found.get((*case, "fidelity")) for case in (first, second)]
        if first.model == second.model and (close := _closeness(measure, *sides)) is not None:
            n = len(sides[0].value("chats")["positions"])
            yield _row(first, measure, close.scaled(factor), n=n, file=_files(sides), **against)


def _files(records: Sequence[Record | None]) -> str:
    return ";".join(record.file for record in records if record is not None)


def _paired(first: Record | None, second: Record | None) -> Estimate | None:
    """The difference of two scores of the same questions; None where there is none."""
    if first is None or second is None or not (first.ok and second.ok):
        return None
    asked = [record.value("questions") for record in (first, second)]
    if None in asked or asked[0]["sha256"] != asked[1]["sha256"]:
        return None
    return paired_difference(*(questions["values"] for questions in asked))


def check_questions(entry: Entry, records: Sequence[Record]) -> None:
    """Raise a `UserError` where variants of one model did not answer the same questions of a task."""
    asked: dict[tuple[str, str], tuple[Record, str]] = {}
    for record in (record for record in records if record.measure == "score" and record.ok):
        if (questions := record.value("questions")) is None:
            continue
        first, digest = asked.setdefault((record.model["name"], record.what), (record, questions["sha256"]))
        if digest != questions["sha256"]:
            raise UserError(
                f"{entry['name']}: {record.file} has other questions of {record.what}, or asked them in another way, than "
                f"{first.file}; score both again"
            )


def _closeness(measure: str, first: Record | None, second: Record | None) -> Estimate | None:
    """The first's closeness minus the second's over the same chats; None where a record does not have it of each chat."""
    chats = [(record.value("chats") or {}) if record is not None else {} for record in (first, second)]
    if not all(chats) or chats[0]["positions"] != chats[1]["positions"]:
        return None
    apart = [mine - other for mine, other in zip(*(one[measure] for one in chats), strict=True)]
    found = ratio(apart, chats[0]["positions"])
    return estimate(found["value"], found["stderr"], found["n"])


def reference(line: Line, shown: Sequence[Line]) -> Case | None:
    """Return the reference of a row: the same variant without the FP8 cache, else the unchanged model, else the last row.

    Both are of its part. None where that is the row itself.
    """
    part = [other.case for other in shown if other.part == line.part and other.case.model == line.case.model]
    plain = [case for case in part if line.case.kv_cache == "fp8" and case == line.case._replace(kv_cache="auto")]
    unchanged = [case for case in part if case.variant == "baseline" and case.kv_cache == "auto"]
    last = [case for case in part if case.kv_cache == "auto"][-1:]
    chosen = next(iter([*plain, *unchanged, *last]), None)
    return None if chosen == line.case else chosen
