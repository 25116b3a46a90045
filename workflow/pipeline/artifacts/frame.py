"""The tidy frame: every number of some records, and every published number beside them, as one row.

A row is one number of one model, variant and KV-cache format: `metric` says which (a score's is its task), `point` is the
serving point, `at` the rate, batch, layer or confidence on its axis. `low` to `high` is its 95 % interval, empty where
nothing was measured twice; that of a count is the count itself. A row without a value has `text`, or a `status` and
`reason`. `against` names the variant whose number was subtracted. `file` is the record, or the published file.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pandas as pd

from pipeline.artifacts.metrics import METRICS
from pipeline.artifacts.records import Record
from pipeline.statistics import (
    Estimate,
    bootstrapped_ratio,
    estimate,
    exact,
    of_turns,
    ratio_of_repeats,
    ratio_of_turns,
    wilson,
)
from swiftkv.cost import GIBI

COLUMNS = (
    "source", "model", "part", "variant", "kv_cache", "point", "at", "metric", "against_model", "against",
    "against_kv_cache", "value", "stderr", "low", "high", "n", "text", "unit", "status", "reason", "conditions", "file",
)  # fmt: skip
NUMBERS = ("at", "value", "stderr", "low", "high", "n")
FEW = 300  # questions below which an accuracy has its Wilson interval
P99_REQUESTS = 200  # fewer have no 99th percentile of their own: it would be their slowest one or two
QUESTION = 400  # characters of one that are printed
BASELINE = ("baseline", "auto")
MERGED = "merge-all-layers"

Row = dict[str, Any]
Baselines = Mapping[tuple[str, str], Record]  # the baseline's record by model and point


def frame(rows: Iterable[Mapping[Any, Any]]) -> pd.DataFrame:
    """Rows as a frame with all of `COLUMNS`: numbers as floats, empty cells of words as ""."""
    made = pd.DataFrame(list(rows), columns=list(COLUMNS))
    words = [column for column in COLUMNS if column not in NUMBERS]
    made[words] = made[words].astype(object).where(made[words].notna(), "")
    made[list(NUMBERS)] = made[list(NUMBERS)].astype(float)
    return made


def measured(records: Sequence[Record]) -> pd.DataFrame:
    """Every number of some records, those against the baseline's records too."""
    paired = [_with_turns(record, records) for record in records]
    baselines = {(record.model["name"], record.what): record for record in paired if record.case == BASELINE}
    # All are compared with the baseline without speculation.
    plain = {record.model["name"]: record for record in baselines.values() if not record.settings.get("speculative")}
    for record in (record for record in paired if record.settings.get("speculative")):
        baselines[record.model["name"], record.what] = plain.get(record.model["name"], record)
    return frame(row for record in paired for row in _rows(record, baselines))


def _with_turns(record: Record, records: Sequence[Record]) -> Record:
    """The baseline's forward passes with the times of all turns that variants took with it, else the record itself."""
    if record.measure != "forward_time" or record.case != BASELINE:
        return record
    theirs = [
        other.result["baseline_samples_seconds"]
        for other in records
        if (other.model["name"], other.what) == (record.model["name"], record.what)
        and other.case != BASELINE
        and other.result.get("batch_tokens") == record.result.get("batch_tokens")
        and other.value("baseline_samples_seconds")
    ]
    if not record.ok or not theirs:
        return record
    samples = [[time for sizes in theirs for time in sizes[place]] for place in range(len(theirs[0]))]
    median = [statistics.median(times) for times in samples]
    return replace(record, result={**record.result, "samples_seconds": samples, "seconds": {"median": median}})


def _rows(record: Record, baselines: Baselines) -> Iterator[Row]:
    task = record.settings.get("task")
    names = [task] if task else [name for name, metric in METRICS.items() if metric.measure == record.measure]
    limits = _limits(record, baselines)
    if record.ok:
        yield from _MEASURES[record.measure](record, baselines)
    else:
        state = {"status": record.status, "reason": record.why}
        yield from (row(record, name) | state for name in names if name not in limits)
    yield from (row(record, name, exact(value)) for name, value in limits.items())


def row(record: Record, metric: str, value: Estimate | float | None = None, **more: Any) -> Row:
    """A row of a record: an estimate, a number without an interval, or neither."""
    if not isinstance(value, Estimate):
        value = Estimate(value) if value is not None else Estimate(None)  # type: ignore[arg-type]
    unit = METRICS[metric].unit if metric in METRICS else ""
    return {
        "source": "measured",
        "model": record.model["name"],
        "variant": record.variant,
        "kv_cache": record.kv_cache,
        "point": record.settings.get("point"),
        "metric": metric,
        **value._asdict(),
        "unit": unit,
        "status": "ok",
        "conditions": record.conditions(),
        "file": record.file,
        **more,
    }


def _limits(record: Record, baselines: Baselines) -> dict[str, float]:
    """Return the limits by the FLOP count or the cost model, by metric; also of a record that is out of memory."""
    base = baselines.get((record.model["name"], record.what))
    found = {
        "throughput": {"speedup_limit": record.cost.get("request_speedup_limit")},
        "kv_capacity": {"capacity_ratio_limit": record.cost.get("capacity_limit")},
        "forward_time": {"forward_speedup_limit": record.cost.get("prefill_speedup_limit")},
    }.get(record.measure, {})
    if record.measure == "latency" and base is not None and not record.settings.get("speculative"):
        high, limit = base.value("lowest_unsustained_rate"), record.cost.get("request_speedup_limit")
        found = {"sustained_rate_limit": high * limit if high and limit and record is not base else None}
    return {name: limit for name, limit in found.items() if limit is not None}


def in_bits(metric: str) -> bool:
    """Whether a task's metric is bits per byte: no share of questions, and less is better."""
    return metric == "bits_per_byte"


def _score(record: Record, baselines: Baselines) -> Iterator[Row]:
    result, bits = record.result, in_bits(record.settings["metric"])
    found = estimate(result["value"], result["stderr"], result["n"])
    right = outcomes(record)
    if right is not None and len(right) < FEW:
        found = found._replace(**dict(zip(("low", "high"), wilson(sum(right), len(right)), strict=True)))
    unit = "bits/byte" if bits else "%"
    yield row(record, record.what, found.scaled(1 if bits else 100), n=result["n"], unit=unit)


def outcomes(record: Record) -> list[float] | None:
    """Whether each question came out right, 1 or 0; None where it is bits or a probability, or the record does not say."""
    values = (record.value("questions") or {}).get("values")
    return values if values and set(values) <= {0.0, 1.0} else None


def _measure(record: Record, metric: str, result: Mapping[str, Any] | None, scale: float = 1, **more: Any) -> Row:
    """A row of a result's `value`, `stderr` and `n`."""
    if not result:
        return row(record, metric, **more)
    n = result.get("n")
    return row(record, metric, estimate(result["value"], result["stderr"], n).scaled(scale), n=n, **more)


def _fidelity(record: Record, baselines: Baselines) -> Iterator[Row]:
    for name in ("kl", "answer_kl", "top1_agreement", "perplexity"):
        scale = 100 if name == "top1_agreement" else 1
        yield _measure(record, name, record.value(name), scale)
        yield _measure(record, f"start_{name}", (record.value("start") or {}).get(name), scale)


def _training(record: Record, baselines: Baselines) -> Iterator[Row]:
    result, per_device = record.result, record.result["tokens_per_second_per_gpu"]
    device = result["accelerator"] or record.device
    hardware = f"{result['gpus']:.4g} × {device}" if result["gpus"] else device
    yield row(record, "training_hardware", text=hardware)
    yield row(record, "training_hours", result["hours"])
    yield row(record, "training_tokens_per_second", result["tokens_per_second"])
    yield row(record, "training_tokens_per_device", per_device or result["tokens_per_second"])
    for name in ("tokens", "steps", "gpus"):
        yield row(record, f"training_{name}", exact(result[name]))
    for name in ("loss_first", "loss_last"):
        yield row(record, name, result[name])


def _early_exit(record: Record, baselines: Baselines) -> Iterator[Row]:
    alignment, decoding = record.result["alignment"], record.result["decoding"]
    total, sure = alignment["all"]["positions"], alignment["above_threshold"]
    yield row(record, "sure_percent", 100 * sure["positions"] / total)
    yield _measure(record, "sure_alignment_percent", sure["agreement"], 100)
    yield _measure(record, "alignment_percent", alignment["all"]["agreement"], 100)
    for part in alignment["bins"]:
        at = part["confidence_from"]
        yield row(record, "bin_percent", 100 * part["positions"] / total, at=at, n=part["positions"])
        yield _measure(record, "bin_alignment_percent", part["agreement"], 100, at=at)
    yield _measure(record, "exited_percent", decoding["exited"], 100)
    yield _measure(record, "time_ratio", decoding["time_ratio"])
    yield _measure(record, "equal_tokens_percent", decoding["equal_tokens"], 100)
    for way, seconds in (decoding.get("seconds_per_token") or {}).items():
        yield row(record, f"{way}_ms", 1000 * seconds if seconds else None)


def _similarity(record: Record, baselines: Baselines) -> Iterator[Row]:
    errors, n = record.value("simscore_stderr") or [], record.value("documents")
    for layer, (value, stderr) in enumerate(zip_longest(record.result["simscore"], errors)):
        yield row(record, "simscore", estimate(value, stderr, n), at=layer, n=n)


def _reading(record: Record, baselines: Baselines) -> Iterator[Row]:
    """By l, of the unchanged model (l = L) and each member of a family; `point` is the task."""
    model = record.result["members"][0]
    for member in record.result["members"]:
        at = member["layer"]
        yield row(record, "prompt_flops_percent", exact(100 * member["flops"]), at=at)
        for task, items in record.result["tasks"].items():
            gain = saved_bits(model, model, task)
            found = {
                "kept": (saved_bits(model, member, task), gain),
                "own_gain": (saved_bits(member, member, task), gain),
                "reading_kl": (member["tasks"][task]["kl"], items["answer_tokens"]),
            }
            for metric, sums in found.items():
                yield row(record, metric, bootstrapped_ratio(*sums), point=task, at=at, n=len(gain))
    for kind, weights in (record.value("heads") or {}).items():
        for layer, weight in enumerate(weights):
            yield row(record, f"{kind}_head", weight, at=layer)


def saved_bits(without: Mapping[str, Any], given: Mapping[str, Any], task: str) -> list[float]:
    """Bits of each answer of a task that one member of a reading needs less with the text than another without it."""
    pairs = zip(without["tasks"][task]["bits_without"], given["tasks"][task]["bits"], strict=True)
    return [before - after for before, after in pairs]


def _throughput(record: Record, baselines: Baselines) -> Iterator[Row]:
    base = baselines.get((record.model["name"], record.what))
    samples = record.value("samples_seconds") or []
    seconds, n = record.result.get("seconds") or (of_turns(samples).value if samples else 1.0), len(samples) or 1
    for name in ("tokens_per_second", "tokens_per_second_per_gpu", "normalized_tflops_per_gpu", "mfu_percent"):
        value = record.value(name)
        yield row(record, name, value and _median(seconds, samples).inverse().scaled(value * seconds), n=n)
    yield row(record, "exact_tflops_per_gpu", record.value("exact_tflops_per_gpu"), n=n)
    yield row(record, "engine_kv_tokens", _count(record.engine.get("kv_cache_tokens")))
    yield row(record, "speedup", _speedup(record, base), n=n)


def _speedup(record: Record, base: Record | None) -> Estimate | float | None:
    """Baseline time over own time: of turns where both took them, else of two records of the same requests."""
    if record.case == BASELINE:
        return exact(1.0)
    if turns := record.turns():
        return ratio_of_turns(*turns)
    if base is None or not base.ok:
        return None
    sides = [one.value("samples_seconds") or [one.result.get("seconds", 1.0)] for one in (base, record)]
    ratio = record.result["tokens_per_second"] / base.result["tokens_per_second"]
    return ratio_of_repeats(*sides) if min(map(len, sides)) > 1 else ratio


def _count(number: float | None) -> Estimate | None:
    return None if number is None else exact(number)


def _capacity(record: Record, baselines: Baselines) -> Iterator[Row]:
    base = baselines.get((record.model["name"], record.what))
    tokens, size = (record.result[name] for name in ("kv_cache_tokens", "kv_cache_bytes"))
    gain = None
    if base is not None and base.ok:
        base_tokens, base_size = (base.result[name] for name in ("kv_cache_tokens", "kv_cache_bytes"))
        # At equal cache memory: the budgets differ a little where the weights do.
        gain = exact(tokens / size / (base_tokens / base_size) if size and base_size else tokens / base_tokens)
    yield row(record, "kv_cache_tokens", exact(tokens))
    yield row(record, "kv_cache_gib", size and exact(size / GIBI))
    yield row(record, "kv_kib_per_token", size and exact(size / tokens / 1024))
    yield row(record, "capacity_ratio", gain)


def _forward(record: Record, baselines: Baselines) -> Iterator[Row]:
    yield from _by_batch(record, baselines, "batch_tokens", "seconds", "forward_ms", "forward_speedup")


def _decode(record: Record, baselines: Baselines) -> Iterator[Row]:
    yield from _by_batch(record, baselines, "batch_sizes", "ms", "decode_ms", "decode_ratio")


def _by_batch(record: Record, baselines: Baselines, axis: str, unit: str, metric: str, ratio: str) -> Iterator[Row]:
    """The time of each batch in milliseconds, and over it the baseline's, or of a `decode_ratio` it over the baseline's."""
    base = baselines.get((record.model["name"], record.what))
    theirs = dict(zip(base.result[axis], _medians(base), strict=True)) if base is not None and base.ok else {}
    for place, (at, time) in enumerate(zip(record.result[axis], _medians(record), strict=True)):
        repeats = record.value(f"samples_{unit}")
        samples = repeats[place] if repeats else []
        yield row(
            record,
            metric,
            _median(time, samples).scaled(1000 if unit == "seconds" else 1),
            at=at,
            n=len(samples) or None,
        )
        turns, gain = record.turns(unit, place), Estimate(theirs[at] / time) if at in theirs else None
        gain = exact(1.0) if record.case == BASELINE else ratio_of_turns(*turns) if turns else gain
        yield row(record, ratio, gain and (gain.inverse() if ratio == "decode_ratio" else gain), at=at)


def _medians(record: Record) -> Sequence[float]:
    return (record.value("seconds") or record.value("tpot_ms"))["median"]


def _median(value: float, samples: Sequence[float]) -> Estimate:
    """A median with the interval of the mean logarithm of its samples; outliers may leave it at an end of that."""
    found = of_turns(samples) if len(samples) > 1 else Estimate(value)
    if found.low is None or found.high is None:
        return Estimate(value)
    return Estimate(value, None, min(found.low, value), max(found.high, value))


def _answer(record: Record, baselines: Baselines) -> Iterator[Row]:
    """Also the baseline's answer, where both took turns."""
    sides = [("", {})]
    if record.value("baseline_text") is not None:
        sides.insert(0, ("baseline_", dict(zip(("variant", "kv_cache"), BASELINE, strict=True))))
    for side, case in sides:
        yield row(record, "question", text=_shortened(record.value("question")), **case)
        yield row(record, "answer", text=record.value(f"{side}text") or "(empty)", **case)
        yield row(record, "answer_tokens", _count(record.value(f"{side}tokens")), **case)
        for metric, unit in (("first_token_ms", "ms"), ("answer_seconds", "seconds")):
            samples = record.value(f"{side}samples_{unit}") or []
            middle = statistics.median(samples) if samples else None
            yield row(record, metric, middle and _median(middle, samples), n=len(samples), **case)
        turns = record.turns("ms")
        gain = ratio_of_turns(*turns) if turns else None
        yield row(record, "first_token_speedup", exact(1.0) if case else gain, **case)


def _shortened(question: str) -> str:
    """A question on one line, its middle left out where it is long."""
    text = " ".join(question.split())
    return text if len(text) <= QUESTION else f"{text[: QUESTION // 2]} [...] {text[-QUESTION // 2 :]}"


def _latency(record: Record, baselines: Baselines) -> Iterator[Row]:
    base = baselines.get((record.model["name"], record.what))
    of_base = {rate["request_rate"]: rate for rate in (base.value("rates") or [] if base is not None else [])}
    for rate in sorted(record.result["rates"], key=lambda rate: rate["request_rate"]):
        at, requests = rate["request_rate"], rate["completed"]
        yield row(record, "sustained", exact(float(rate.get("sustained", True))), at=at, n=requests)
        yield row(record, "achieved_request_rate", rate.get("achieved_request_rate"), at=at, n=requests)
        for name in ("ttft", "tpot"):
            times = rate.get(f"{name}_ms") or {}
            for statistic in ("median", "mean", *(["p99"] if requests >= P99_REQUESTS else [])):
                yield row(record, f"{name}_{statistic}_ms", times.get(statistic), at=at, n=requests)
            theirs = (of_base.get(at) or {}).get(f"{name}_ms", {}).get("median")
            # Where the baseline does not keep up, its times grow with the length of the measurement; rates that a search
            # added differ between variants.
            same = (
                record.case != BASELINE
                and at in record.settings["request_rates"]
                and of_base.get(at, {}).get("sustained")
            )
            if same and theirs and times.get("median") is not None:
                yield row(record, f"{name}_reduction_percent", 100 * (1 - times["median"] / theirs), at=at, n=requests)
    low, high = record.value("highest_sustained_rate"), record.value("lowest_unsustained_rate")
    yield row(record, "highest_sustained_rate", Estimate(low, None, low, high if low else None))
    yield row(record, "sustained_rate_speedup", _rate_gain(record, base))


def _rate_gain(record: Record, base: Record | None) -> Estimate | None:
    """How many times the baseline's rate is sustained: between the least and the most that both brackets allow."""
    if record is base:
        return exact(1.0)
    if base is None or not base.ok:
        return None
    low, high = (record.value(name) for name in ("highest_sustained_rate", "lowest_unsustained_rate"))
    base_low, base_high = (base.value(name) for name in ("highest_sustained_rate", "lowest_unsustained_rate"))
    if not (low and base_low and base_high):
        return None
    least, most = low / base_high, high / base_low if high else None
    return Estimate((least + most) / 2 if most else None, None, least, most)  # type: ignore[arg-type]


_MEASURES: Mapping[str, Callable[[Record, Baselines], Iterator[Row]]] = {
    "score": _score,
    "fidelity": _fidelity,
    "training": _training,
    "early_exit": _early_exit,
    "similarity": _similarity,
    "reading": _reading,
    "throughput": _throughput,
    "kv_capacity": _capacity,
    "forward_time": _forward,
    "decode": _decode,
    "answer": _answer,
    "latency": _latency,
}
