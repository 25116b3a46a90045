"""The tidy frame: every number of some records, and every published number beside them, as one row.

A row is one number of one model, variant and KV-cache format: `metric` says which (a score's is its task), `point` is the
serving point, `at` the rate, batch, layer or confidence on its axis. `low` to `high` is its 95 % interval, empty where
nothing was measured twice; that of a count is the count itself, and of a sustained rate the rates that bracket it. A row
without a value has `text`, or a `status` and `reason`. `against` names the variant whose number was subtracted. `file` is
the record, or the published file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import StatisticsError
from typing import Any

import numpy as np
import pandas as pd

from pipeline.artifacts import Content, MetricRows, Row
from pipeline.artifacts.metrics import METRICS, Metric, of_measure
from pipeline.artifacts.rates import latency_rows
from pipeline.artifacts.records import Case, Record
from pipeline.statistics import (
    Estimate,
    bootstrapped_ratio,
    estimate,
    exact,
    mean_and_stderr,
    of_turns,
    ratio_of_repeats,
    ratio_of_turns,
    wilson,
)
from swiftkv.errors import UserError

COLUMNS = (
    "source", "model", "part", "variant", "kv_cache", "point", "at", "metric", "against_model", "against",
    "against_kv_cache", "value", "stderr", "low", "high", "n", "text", "unit", "status", "reason", "conditions", "file",
)  # fmt: skip
NUMBERS = ("at", "value", "stderr", "low", "high", "n")
WORDS = [column for column in COLUMNS if column not in NUMBERS]
WILSON_BELOW = 300  # questions below which an accuracy has its Wilson interval
MERGED = "merge-all-layers"
# Of trained variants; the place of each is that of the member of a reading that is asked without passages.
PASSAGES = ("passage_kept_percent", "passage_read_percent")
# Tasks of a reading, with their titles.
TEXTS = {"squad": "SQuAD, in chats", "among": "SQuAD, among three other passages"}
# Measurements by batch: their axis, and the unit of the samples.
_BATCHES = {"forward_time": ("batch_tokens", "seconds"), "decode": ("batch_sizes", "ms")}


def frame(rows: Iterable[Mapping[Any, Any]]) -> pd.DataFrame:
    """Rows as a frame with all of `COLUMNS`: numbers as floats, empty cells of words as ""."""
    made = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)
    return made.astype(dict.fromkeys(NUMBERS, float)).fillna(dict.fromkeys(WORDS, ""))


def read_frame(file: Path) -> pd.DataFrame:
    """The rows of a CSV that an artifact wrote."""
    return frame(pd.read_csv(file, dtype=dict.fromkeys(WORDS, str)).to_dict("records"))


def interval(row: Mapping[Any, Any] | pd.Series, side: str = "") -> Estimate:
    """The number of a row; `side` ends the names of its columns where two frames were merged."""
    return Estimate(*(None if pd.isna(row[name + side]) else float(row[name + side]) for name in Estimate._fields))


def measured(records: Sequence[Record]) -> pd.DataFrame:
    """Every number of some records, those against the baseline's records too."""
    paired = [_pool_baseline_times(record, records) for record in records]
    bases = {(one.case.model, one.measure, one.what): one for one in paired if one.case.unchanged and one.ok}
    # All are compared with the baseline without speculation.
    plain = {key[:2]: record for key, record in bases.items() if not record.settings.get("speculative")}
    rows: list[Row] = []
    for record in paired:
        kind = record.case.model, record.measure
        speculates = record.settings.get("speculative") and kind in plain
        base = plain[kind] if speculates else bases.get((*kind, record.what))
        try:
            rows += _rows(record._replace(base=None if base is record else base))
        except (KeyError, StatisticsError) as error:
            raise UserError(
                f"{record.file} was written by an older version and lacks numbers ({error}); delete it and run again"
            ) from None
    return frame(rows)


def _pool_baseline_times(record: Record, records: Sequence[Record]) -> Record:
    """Replace the baseline's times by those measured in alternation with all variants; return other records as they are.

    So its bars and the speed-ups over it are of the same times.
    """
    _, unit = _BATCHES.get(record.measure, ("", "seconds"))
    same_case = [one for one in records if (one.case.model, one.what) == (record.case.model, record.what)]
    baseline_times = [times for one in same_case if (times := one.times(unit, side="baseline_"))]
    if not (baseline_times and record.case.unchanged and record.ok):
        return record
    samples = np.concatenate(baseline_times, axis=-1)  # of each batch, where there are several
    return record._replace(result={**record.result, f"samples_{unit}": samples.tolist()})


def _rows(record: Record) -> Iterator[Row]:
    """The rows of a record."""
    limits = _limits(record)
    if record.ok:
        computed = _MEASURES[record.measure](record) if record.measure in _MEASURES else ()
        for values, more in itertools.chain(_at_paths(record), computed):
            yield from (row(record, metric, value, **more) for metric, value in values.items())
    else:
        task, state = record.settings.get("task"), {"status": record.status, "reason": record.reason}
        names = [task] if task else of_measure(record.measure)
        yield from (row(record, name, **state) for name in names if name not in limits)
    yield from (row(record, name, value) for name, value in limits.items())


def cells(metric: str, value: Estimate | float | str | None = None, **more: Any) -> Row:
    """The cells of a row: an estimate, a number without an interval, text, or nothing."""
    about, text = METRICS.get(metric, Metric("score", metric)), None
    if isinstance(value, str):
        value, text = None, value
    if not isinstance(value, Estimate):
        value = exact(value) if about.counted and value is not None else Estimate(value)  # type: ignore[arg-type]
    known = {"source": "measured", "metric": metric, "text": text, "unit": about.unit, "status": "ok"}
    return known | value._asdict() | more


def row(record: Record, metric: str, value: Estimate | float | str | None = None, **more: Any) -> Row:
    """A row of a record."""
    origin = {"point": record.settings.get("point"), "conditions": record.conditions, "file": record.file}
    return cells(metric, value, **record.case._asdict() | origin | more)


def _limits(record: Record) -> dict[str, float]:
    """Return the limits by the FLOP count or the cost model, by metric; also of a record that is out of memory."""
    factor = 1.0
    if record.measure == "latency":  # the rate that is too high for the baseline
        compared = record.base and not record.settings.get("speculative")
        factor = record.base.value("lowest_unsustained_rate") if compared else None
    found = {name: record.cost.get(metric.limit) for name, metric in of_measure(record.measure).items()}
    return {name: factor * limit for name, limit in found.items() if limit and factor}


def in_bits(metric: str) -> bool:
    """Return True if a task's metric is bits per byte (lower is better)."""
    return metric == "bits_per_byte"


def scale_of(metric: str) -> tuple[int, str]:
    """Return the factor of a task's number, and its unit."""
    return (1, "bits/byte") if in_bits(metric) else (100, "%")


def outcomes(record: Record) -> list[float] | None:
    """Return for each question 1 if it came out right, else 0; None for bits and probabilities, or if the record has none."""
    values = (record.value("questions") or {}).get("values")
    return values if values and set(values) <= {0.0, 1.0} else None


def _score(record: Record) -> MetricRows:
    result, right, (factor, unit) = record.result, outcomes(record), scale_of(record.settings["metric"])
    found = estimate(result["value"], result["stderr"], result["n"])
    if right is not None and len(right) < WILSON_BELOW:
        found = Estimate(found.value, found.stderr, *wilson(sum(right), len(right)))
    yield {record.what: found.scaled(factor)}, {"n": result["n"], "unit": unit}


def _mean(metric: str, found: Content | float | None, **more: Any) -> tuple[Row, Row]:
    """A number of a result, or a mean with its `stderr` and `n`, in the metric's unit."""
    factor = METRICS[metric].factor
    if isinstance(found, Mapping):
        n = found.get("n")
        return {metric: estimate(found["value"], found["stderr"], n).scaled(factor)}, {"n": n, **more}
    return {metric: None if found is None else factor * found}, more


def _at_paths(record: Record) -> MetricRows:
    """The metrics that have a path in the result."""
    for name, metric in of_measure(record.measure).items():
        if metric.path:
            found: Any = record.result
            for key in metric.path.split("."):
                found = (found or {}).get(key)
            yield _mean(name, found)


def _training(record: Record) -> MetricRows:
    result = record.result
    device = result["accelerator"] or record.device
    yield (
        {
            "training_hardware": f"{result['gpus']:.4g} × {device}" if result["gpus"] else device,
            "training_tokens_per_device": result["tokens_per_second_per_gpu"] or result["tokens_per_second"],
        },
        {},
    )


def _early_exit(record: Record) -> MetricRows:
    alignment = record.result["alignment"]
    total = alignment["all"]["positions"]
    yield {"sure_percent": 100 * alignment["above_threshold"]["positions"] / total}, {}
    for part in alignment["bins"]:
        at = part["confidence_from"]
        yield {"bin_percent": 100 * part["positions"] / total}, {"at": at, "n": part["positions"]}
        yield _mean("bin_alignment_percent", part["agreement"], at=at)


def _similarity(record: Record) -> MetricRows:
    errors, n = record.value("simscore_stderr") or [], record.value("documents")
    pairs = record.result["pairwise"][:-1]
    for layer, (value, stderr, pair) in enumerate(itertools.zip_longest(record.result["simscore"], errors, pairs)):
        yield {"simscore": estimate(value, stderr, n), "next_similarity": pair[layer + 1]}, {"at": layer, "n": n}


def _reading(record: Record) -> MetricRows:
    """By l, of the unchanged model (l = L) and each member of a family; `point` is the task. A trained variant has one l.

    `kept` and `read` are shares of the in-context pointwise V-information (arXiv 2310.12300) of texts for the unchanged model;
    of a trained variant's passages also in percent, for tables.
    """
    model = record.result["members"][0]
    for member in record.result["members"]:
        at = {"at": member["layer"]}
        yield {"prompt_flops_percent": 100 * member["flops"]}, at
        for task, items in known_tasks(record).items():
            gain = saved_bits(model, model, task)
            found = {
                "kept": bootstrapped_ratio(saved_bits(model, member, task), gain),
                "read": bootstrapped_ratio(saved_bits(member, member, task), gain),
                "reading_kl": bootstrapped_ratio(member["tasks"][task]["kl"], items["answer_tokens"]),
            }
            yield found, {"point": task, "n": len(gain), **at}
            if record.spec and member is not model and task == "squad":
                percents = [found[name].scaled(100) for name in ("kept", "read")]
                yield dict(zip(PASSAGES, percents, strict=True)), {"n": len(gain)}


def known_tasks(record: Record) -> Content:
    """Return the tasks of a reading, without those that records of earlier versions also have."""
    return {task: items for task, items in record.result["tasks"].items() if task in TEXTS}


def saved_bits(without: Content, given: Content, task: str) -> np.ndarray:
    """Bits of each answer of a task that one member of a reading needs less with the text than another without it."""
    return np.subtract(without["tasks"][task]["bits_without"], given["tasks"][task]["bits"])


def _throughput(record: Record) -> MetricRows:
    times = record.times()
    runs = of_turns(times).inverse()  # a second
    speeds = {
        name: value and runs.scaled(value * record.result["seconds"])
        for name in ("tokens_per_second", "tokens_per_second_per_gpu", "normalized_tflops_per_gpu", "mfu_percent")
        for value in [record.value(name)]
    }
    yield speeds | {"speedup": _speedup(record)}, {"n": len(times)}
    yield {"engine_kv_tokens": record.engine.get("kv_cache_tokens")}, {}


def _speedup(record: Record, *which: Any) -> Estimate | None:
    """Baseline time over own time: of turns where both took them, else of two records of the same requests.

    Args:
        which: unit and place, as of `Record.times`.
    """
    if record.case.unchanged:
        return exact(1.0)
    if turns := record.turns(*which):
        return ratio_of_turns(*turns)
    return record.base and ratio_of_repeats(record.base.times(*which), record.times(*which))


def _capacity(record: Record) -> MetricRows:
    tokens, size = (record.result[name] for name in ("kv_cache_tokens", "kv_cache_bytes"))
    base, gain = record.base, 1.0 if record.case.unchanged else None
    if base is not None:
        base_tokens, base_size = (base.result[name] for name in ("kv_cache_tokens", "kv_cache_bytes"))
        # At equal cache memory: the budgets differ a little where the weights do.
        memory = size and base_size and _of_16_bits(record, size) / _of_16_bits(base, base_size)
        gain = tokens / base_tokens / (memory or 1)
    yield {"kv_kib_per_token": size and size / tokens / 1024, "capacity_ratio": gain}, {}


def _of_16_bits(record: Record, size: float) -> float:
    """Return the bytes of a cache of `size` bytes in 16-bit numbers, as the cost model counts it; FP8 stays as it is."""
    return size / 2 if record.kv_cache == "auto" and record.settings.get("dtype") == "float32" else size


def _by_batch(record: Record) -> MetricRows:
    """The time of each batch in milliseconds, and over it the baseline's; of steps that decode, it over the baseline's."""
    forward = record.measure == "forward_time"
    axis, unit = _BATCHES[record.measure]
    for place, at in enumerate(record.result[axis]):
        times, gain = record.times(unit, place), _speedup(record, unit, place)
        shown = of_turns(times).scaled(1000 if forward else 1)
        yield {"forward_ms" if forward else "decode_ms": shown}, {"at": at, "n": len(times)}
        yield {"forward_speedup": gain} if forward else {"decode_ratio": gain and gain.inverse()}, {"at": at}


def _answer(record: Record) -> MetricRows:
    """Also the baseline's, where both took turns. `part` is the question; behind an answer stands its F1."""
    turns = record.turns("ms")
    for side, case in (("baseline_", Case(record.case.model, "baseline")._asdict()), ("", {})):
        answers, samples = (record.value(f"{side}{name}") for name in ("answers", "samples_ms"))
        if not (answers and samples):
            continue
        f1, n = answers["f1"], len(answers["f1"])
        for place, (asked, text) in enumerate(zip(record.result["asked"], answers["text"], strict=True)):
            yield (
                {"answer": f"{text} (F1 {f1[place]:.2f})"},
                {"at": place, "part": f"{asked[0]}\nAccepted: {' / '.join(asked[1:])}", **case},
            )
        values = {
            name: Estimate(*mean_and_stderr(answers[name]), *wilson(sum(answers[name]), n)).scaled(100)
            for name in ("exact_match", "contained")
        }
        yield values | {"f1": estimate(*mean_and_stderr(f1), n).scaled(100)}, {"n": n, **case}
        yield {"first_token_speedup": exact(1.0) if case else turns and ratio_of_turns(*turns)}, case
        yield {"first_token_ms": of_turns(samples)}, {"n": len(samples), **case}


_MEASURES = {
    "score": _score,
    "training": _training,
    "early_exit": _early_exit,
    "similarity": _similarity,
    "reading": _reading,
    "throughput": _throughput,
    "kv_capacity": _capacity,
    "forward_time": _by_batch,
    "decode": _by_batch,
    "answer": _answer,
    "latency": latency_rows,
}
