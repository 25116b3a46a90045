"""Rows that a table makes of its records: reductions of a variant, averages over tasks, and paired differences."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.artifacts import Content, Entry, Row
from pipeline.artifacts.frame import MERGED, PASSAGES, cells, in_bits, outcomes, saved_bits, scale_of
from pipeline.artifacts.labels import heads_label
from pipeline.artifacts.metrics import NONE
from pipeline.artifacts.records import Case, Record
from pipeline.statistics import Estimate, bootstrapped_ratio, estimate, exact, mean_of, paired_difference, ratio
from pipeline.text import percent
from swiftkv.spec import SwiftKVSpec

RecordsByCase = Mapping[tuple[str, ...], Record]
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
    return [task for task, settings in entry["tasks"].items() if not in_bits(settings["metric"])]


def derived_rows(entry: Entry, cases: Sequence[Case], found: RecordsByCase, tasks: Sequence[str]) -> Iterator[Row]:
    """Reductions, averages over tasks and differences of cases."""
    specs = {(model, variant): record.spec for (model, variant, *_), record in found.items()}
    read = {model for model, *_, measure in found if measure == "reading"}
    for case in cases:
        yield from reductions(entry, case, specs.get((case.model, case.variant)))
        yield from average(case, tasks, found)
        if case.model in read and case.unchanged:  # what others are shares of
            yield from (cells(metric, exact(100), **case._asdict() | {"source": "arithmetic"}) for metric in PASSAGES)
    for first, second in itertools.permutations(cases, 2):
        yield from differences(entry, first, second, tasks, found)


def by_case(records: Sequence[Record]) -> RecordsByCase:
    """Records by model, variant, KV-cache format, and task or measure."""
    return {(*record.case, record.what if record.measure == "score" else record.measure): record for record in records}


def reductions(entry: Entry, case: Case, measured: Content | None) -> Iterator[Row]:
    """The share of layers that a prompt skips, and of the baseline's bfloat16 cache that is saved; FP8 halves what is left.

    Scales are not counted, as in the paper. The cache of a variant with KV heads of its own depends on the teacher's, which
    is in the spec that was `measured`.
    """
    fields, known = entry["specs"][case.model].get(case.variant), case._asdict() | {"source": "arithmetic"}
    if case.variant == MERGED:  # served only; vLLM reports what it saves
        return
    spec = SwiftKVSpec(**fields) if fields else SwiftKVSpec(1, 1)  # of an unchanged model the layers do not matter
    text = f"{percent(spec.prefill_reduction)} (l = {spec.num_key_value_layers})" if fields else NONE
    yield cells("prefill_reduction_percent", exact(100 * spec.prefill_reduction), text=text, **known)
    if spec.num_key_value_heads and not measured:
        return
    saved, group = measured["kv_cache_reduction"] if measured else spec.kv_cache_reduction(1), spec.key_value_group_size
    saved = 1 - (1 - saved) / 2 if case.kv_cache == "fp8" else saved
    text = f"{group}-way ({percent(saved)})" if group > 1 else f"{NONE} ({percent(saved)})" if saved else NONE
    yield cells("kv_cache_reduction_percent", exact(100 * saved), text=text + heads_label(fields), **known)


def averaged(entry: Entry, cases: Sequence[Case], found: RecordsByCase) -> list[str]:
    """The accuracies that averages are over: every case has them which has any, so that averages can be compared.

    With `average: above chance`, only those in which the baseline is clearly better than guessing, as far as that is known.
    """
    known = accuracies(entry)
    scored = {case: tasks for case in cases if (tasks := [task for task in known if _result(found, case, task)])}
    shared = [task for task in known if scored and all(task in tasks for tasks in scored.values())]
    if entry.get("average") != "above chance":
        return shared
    baseline = next((case for case in scored if case.unchanged), None)
    return [task for task in shared if baseline and _above_chance(found[*baseline, task], entry["tasks"][task])]


def _above_chance(record: Record, task: Content) -> bool:
    low = estimate(record.result["value"], record.result["stderr"], record.result["n"]).low
    return None not in (low, chance := task.get("chance")) and low > chance


def _result(found: RecordsByCase, case: Case, what: str) -> Content:
    """The numbers of a case's record; empty where it has none."""
    record = found.get((*case, what))
    return record.result if record and record.ok else {}


def average(case: Case, tasks: Sequence[str], found: RecordsByCase) -> Iterator[Row]:
    """Yield the mean over tasks in percent; their questions are independent samples, n is the number of tasks."""
    scores = [found[*case, task] for task in tasks if (*case, task) in found]
    if gap := next((record for record in scores if not record.ok), None):
        yield cells("average", **case._asdict(), status=gap.status, reason=gap.reason)
    elif tasks and len(scores) == len(tasks):
        mean = mean_of([Estimate(record.result["value"], record.result["stderr"]) for record in scores])
        yield cells("average", mean.scaled(100), **case._asdict(), n=len(tasks), file=_files(found, [case], tasks))


def differences(entry: Entry, first: Case, second: Case, tasks: Sequence[str], found: RecordsByCase) -> Iterator[Row]:
    """First minus second on the same questions and chats, in the unit of each score; `text` has the answers that changed."""
    both = (first, second)
    against = {"against_model": second.model, "against": second.variant, "against_kv_cache": second.kv_cache}

    def results(what: str) -> list[Any]:
        return [_result(found, case, what) for case in both]

    def difference(metric: str, value: Estimate, of: Sequence[str], **more: Any) -> Row:
        return cells(metric, value, file=_files(found, both, of), **more, **first._asdict(), **against)

    mine, theirs = results("answer")
    if mine and theirs and mine["asked"] == theirs["asked"]:
        for metric in ("exact_match", "contained", "f1"):
            changed = paired_difference(mine["answers"][metric], theirs["answers"][metric])
            yield difference(metric, changed.scaled(100), ["answer"])
    apart = {}
    for task, settings in entry["tasks"].items():
        questions = [result.get("questions") for result in results(task)]
        if not all(questions) or questions[0]["sha256"] != questions[1]["sha256"]:
            continue
        apart[task] = paired_difference(*(each["values"] for each in questions))
        right = [outcomes(found[*case, task]) for case in both]
        # Two models may be as often right and yet answer differently (Dutta et al., "Accuracy is Not All You Need", 2024).
        changed = None if None in right else sum(map(operator.ne, *right)) / len(right[0])
        text = None if changed is None else f"({100 * changed:.0f}%)"
        factor, unit = scale_of(settings["metric"])
        number = found[*first, task].result["n"]
        yield difference(task, apart[task].scaled(factor), [task], text=text, n=number, unit=unit)
    if tasks and all(task in apart for task in tasks):
        mean = mean_of([apart[task] for task in tasks])
        yield difference("average", mean.scaled(100), tasks, n=len(tasks))
    if first.model != second.model:
        return
    mine, theirs = (result.get("chats") for result in results("fidelity"))
    if mine and theirs and mine["positions"] == theirs["positions"]:
        for measure, factor in CLOSENESS.items():
            close = ratio(list(map(operator.sub, mine[measure], theirs[measure])), mine["positions"])
            yield difference(measure, estimate(**close).scaled(factor), ["fidelity"], n=close["n"])
    readings = results("reading")
    if all(readings) and readings[0]["tasks"]["squad"] == readings[1]["tasks"]["squad"]:
        model = readings[0]["members"][0]
        for without, metric in enumerate(PASSAGES):
            mine, theirs = (saved_bits(one["members"][without], one["members"][1], "squad") for one in readings)
            kept = bootstrapped_ratio(mine - theirs, saved_bits(model, model, "squad"))
            yield difference(metric, kept.scaled(100), ["reading"])


def _files(found: RecordsByCase, cases: Sequence[Case], names: Sequence[str]) -> str:
    return ";".join(found[*case, name].file for case in cases for name in names)


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
