"""Rows that a table makes of its records: reductions of a variant, averages over tasks, and paired differences."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.artifacts.frame import BASELINE, Row, cells, in_bits, outcomes
from pipeline.artifacts.labels import heads_label
from pipeline.artifacts.metrics import NONE, percent
from pipeline.artifacts.published import Case
from pipeline.artifacts.records import Record
from pipeline.statistics import Estimate, estimate, exact, mean_of, paired_difference, ratio
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
    return [
        Line(Case(model, *case), part["title"])
        for part in entry["parts"]
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
    for case in cases:
        yield from _reductions(entry, case, specs.get((case.model, case.variant)))
        yield from _average(case, tasks, found)
    for first, second in itertools.permutations(cases, 2):
        yield from _differences(entry, first, second, tasks, found)


def by_case(records: Sequence[Record]) -> Found:
    """Records by model, variant, KV-cache format, and task or measure."""
    return {
        (record.model["name"], *record.case, record.what if record.measure == "score" else record.measure): record
        for record in records
    }


def _reductions(entry: Entry, case: Case, measured: Mapping[str, Any] | None) -> Iterator[Row]:
    """The share of layers that a prompt skips, and of the baseline's bfloat16 cache that is saved; FP8 halves what is left.

    Scales are not counted, as in the paper. The cache of a variant with KV heads of its own depends on the teacher's, which
    is in the spec that was `measured`.
    """
    fields, known = entry["specs"][case.model].get(case.variant), case._asdict() | {"source": "arithmetic"}
    spec = SwiftKVSpec(**fields) if fields else None
    prefill, saved, group = (spec.prefill_reduction, None, spec.key_value_group_size) if spec else (0.0, 0.0, 1)
    text = f"{percent(prefill)} (l = {spec.num_key_value_layers})" if spec else NONE
    yield cells("prefill_reduction_percent", exact(100 * prefill), text=text, **known)
    if measured:
        saved = measured["kv_cache_reduction"]
    elif spec and not spec.num_key_value_heads:
        saved = spec.kv_cache_reduction(1)
    if saved is not None:
        saved = 1 - (1 - saved) / 2 if case.kv_cache == "fp8" else saved
        text = f"{group}-way ({percent(saved)})" if group > 1 else f"{NONE} ({percent(saved)})" if saved else NONE
        yield cells("kv_cache_reduction_percent", exact(100 * saved), text=text + heads_label(fields), **known)


def averaged(entry: Entry, cases: Sequence[Case], found: Found) -> list[str]:
    """The accuracies that averages are over: every case has them which has any, so that averages can be compared.

    With `average: above chance`, only those in which the baseline is clearly better than guessing.
    """
    tasks = accuracies(entry)
    scored = {case: [task for task in tasks if (one := found.get((*case, task))) and one.ok] for case in cases}
    with_some = [case for case in cases if scored[case]]
    shared = [task for task in tasks if with_some and all(task in scored[case] for case in with_some)]
    if entry.get("average") != "above chance":
        return shared
    baseline = next((case for case in with_some if case[1:] == BASELINE), None)
    return [task for task in shared if baseline and _above_chance(found[*baseline, task], entry["tasks"][task])]


def _above_chance(record: Record, task: Mapping[str, Any]) -> bool:
    low = estimate(record.result["value"], record.result["stderr"], record.result["n"]).low
    return low is not None and low > task.get("chance", 0.0)


def _average(case: Case, tasks: Sequence[str], found: Found) -> Iterator[Row]:
    """Yield the mean over tasks in percent; their questions are independent samples, n is the number of tasks."""
    scores = [found[*case, task] for task in tasks if (*case, task) in found]
    if gap := next((record for record in scores if not record.ok), None):
        yield cells("average", **case._asdict(), status=gap.status, reason=gap.why)
    elif tasks and len(scores) == len(tasks):
        mean = mean_of([Estimate(record.result["value"], record.result["stderr"]) for record in scores])
        yield cells("average", mean.scaled(100), **case._asdict(), n=len(tasks), file=_files(scores))


def _differences(entry: Entry, first: Case, second: Case, tasks: Sequence[str], found: Found) -> Iterator[Row]:
    """First minus second on the same questions and chats, in the unit of each score; `text` has the answers that changed."""
    against = {"against_model": second.model, "against": second.variant, "against_kv_cache": second.kv_cache}
    known, apart = first._asdict() | against, {}
    for task, settings in entry.get("tasks", {}).items():
        if not (pair := _pair(found, first, second, task, "questions")):
            continue
        records, questions = pair
        if questions[0]["sha256"] != questions[1]["sha256"]:
            continue
        apart[task] = paired_difference(*(each["values"] for each in questions))
        bits, right = in_bits(settings["metric"]), [outcomes(record) for record in records]
        # Two models may be as often right and yet answer differently (Dutta et al., "Accuracy is Not All You Need", 2024).
        changed = None if None in right else sum(map(operator.ne, *right)) / len(right[0])
        text = None if changed is None else f"({100 * changed:.0f}%)"
        more = {
            "text": text,
            "n": records[0].result["n"],
            "unit": "bits/byte" if bits else "%",
            "file": _files(records),
        }
        yield cells(task, apart[task].scaled(1 if bits else 100), **known | more)
    if tasks and all(task in apart for task in tasks):
        mean = mean_of([apart[task] for task in tasks])
        asked = _files([found[*case, task] for case in (first, second) for task in tasks])
        yield cells("average", mean.scaled(100), **known, n=len(tasks), file=asked)
    pair = _pair(found, first, second, "fidelity", "chats") if first.model == second.model else None
    if pair and pair[1][0]["positions"] == pair[1][1]["positions"]:
        records, (mine, theirs) = pair
        for measure, factor in CLOSENESS.items():
            close = ratio(
                [one - other for one, other in zip(mine[measure], theirs[measure], strict=True)], mine["positions"]
            )
            more = {"n": close["n"], "file": _files(records)}
            yield cells(measure, estimate(**close).scaled(factor), **known | more)


def _files(records: Sequence[Record]) -> str:
    return ";".join(record.file for record in records)


def _pair(found: Found, first: Case, second: Case, what: str, key: str) -> tuple[list[Record], list[Any]] | None:
    """The records of two cases and what each has of every question or chat; None where one does not."""
    records = [record for case in (first, second) if (record := found.get((*case, what))) and record.value(key)]
    return (records, [record.value(key) for record in records]) if len(records) == 2 else None


def reference(line: Line, shown: Sequence[Line]) -> Case | None:
    """Return the reference of a row: the same variant without the FP8 cache, else the unchanged model, else the last row.

    All are of its part. None where that is the row itself.
    """
    part = [other.case for other in shown if other.part == line.part and other.case.model == line.case.model]
    part = [case for case in part if case.kv_cache == "auto"]
    plain = line.case._replace(kv_cache="auto")
    wanted = [*([plain] if plain != line.case else []), plain._replace(variant="baseline"), *part[-1:]]
    chosen = next((case for case in wanted if case in part), None)
    return None if chosen == line.case else chosen
