"""Claims: borne out by the sources' own numbers, never certain without a measured interval, and wrong where numbers are."""

import math

import pytest
from tests.unit.artifact_helpers import PAPER, scale, typed

from pipeline.artifacts import contents
from pipeline.artifacts.claims import (
    AGREES,
    ARTIFACTS,
    CLAIMS,
    MODELS,
    OTHER,
    SAME,
    UNDECIDED,
    UNMEASURED,
    Claim,
    Results,
)
from pipeline.artifacts.frame import frame
from pipeline.artifacts.judge import judge, with_settings
from pipeline.artifacts.published import number, read_csv

QUESTIONS = {  # of each benchmark in full
    "arc-challenge": 1172, "winogrande": 1267, "hellaswag": 10042, "truthfulqa": 817, "mmlu": 14042, "mmlu-cot": 14042,
    "gsm8k": 1319,
}  # fmt: skip
ROLES = {role: {"name": model, "title": model, "published": model} for role, model in MODELS.items()} | {"nobody": None}
H100 = "1 × NVIDIA H100 80GB HBM3, bfloat16, vLLM 0.32.0"
POSITIVE, GAIN, LOSS = (0, math.inf), (1.05, math.inf), (-math.inf, 3)


def measured(metric, value, low=None, high=None, *, model="llama-3.1-8b", variant="swiftkv-50", **more):
    known = {"source": "measured", "kv_cache": "auto", "status": "ok", "n": 7, "conditions": H100}
    return (
        known | {"model": model, "variant": variant, "metric": metric, "value": value, "low": low, "high": high} | more
    )


def results(*rows, points=None, **more):
    return Results({"t": with_settings(frame(rows), points or {})}, ROLES, **more)


def cell(metric="speedup", role="small", **more):
    return {"artifact": "t", "metric": metric, "role": role} | ({"gpus": 1} if metric == "speedup" else {}) | more


def averages(*variants):
    return [cell("average", variant=variant) for variant in variants]


def claim(how, cells, stated, weaker=None, **more):
    return Claim("c", "A sentence", "paper", how, stated, weaker, of=cells, **more)


FAST = claim("cell", [cell()], (1.75, 1.95), GAIN)


def test_claims_are_one_each_of_cells_that_the_artifact_shows_with_a_form_that_is_weaker():
    assert len({each.id for each in CLAIMS}) == len(CLAIMS) > 140
    config, page = scale(), typed(scale())
    for each, one in ((claim, one) for claim in CLAIMS for one in claim.cells):
        entry = config["artifacts"][one["artifact"]]
        parts = entry.get("parts", [entry])
        roles = {role for part in parts for role in part.get("models", [])}
        assert entry["kind"] == "absent" or one["role"] in roles, each.id
        variants = {one["variant"]} if isinstance(one["variant"], str) else set(one["variant"])
        shown = {case[0] for part in parts for case in contents.cases(page, part.get("variants", []))}
        assert not shown or shown | set(entry.get("families", [])) >= variants, each.id
    # What is stated is within its weaker form.
    for each in (each for each in CLAIMS if each.weaker is not None):
        (low, high), (weak_low, weak_high) = each.stated, each.weaker
        assert weak_low <= low <= high <= weak_high, each.id


# Verdicts


@pytest.mark.parametrize(
    "value, low, high, verdict, weights",
    [
        (1.8, 1.75, 1.85, AGREES, ""),
        (1.8, 1.01, 1.9, UNDECIDED, ""),
        (1.8, None, None, UNDECIDED, ""),
        (1.8, 1.8, math.inf, AGREES, ""),
        (1.61, 1.60, 1.62, SAME, ""),
        (0.95, 0.9, 0.98, OTHER, ""),
        (1.8, 1.75, 1.85, SAME, ", FP8 weights"),
        (1.8, 1.75, 1.85, SAME, ", dummy weights"),
        (0.95, 0.9, 0.98, OTHER, ", dummy weights"),
    ],
)
def test_a_verdict_is_by_the_measured_interval_and_certain_on_the_stated_case_alone(value, low, high, verdict, weights):
    there = measured("speedup", value, low, high, conditions=H100 + weights)
    assert judge(FAST, results(there)).verdict == verdict


def test_a_share_of_more_than_100_percent_comes_with_a_sentence():
    used = claim("cell", [cell("mfu_percent")], (50, math.inf), unit="%")
    for value, exceeds in ((60.0, False), (120.0, True)):
        reason = judge(used, results(measured("mfu_percent", value, value - 1, value + 1))).reason
        assert ("exceed 100 %" in reason) is exceeds


def test_requests_of_any_point_that_are_not_as_stated_are_named():
    fast = claim("least", [cell("speedup", artifact="figure3")], (1.75, 1.95), GAIN)
    whole = {"input_tokens": 2000, "output_tokens": 256, "total_tokens": 1_250_000, "repeats": 12}
    for change, why in (
        ({}, "own case"),
        ({"output_tokens": 16}, "requests of 16 output tokens"),
        ({"repeats": 1}, "requests of 1,250,000 tokens in all"),
    ):
        points = {"first": whole, "last": whole | {"input_tokens": 128000} | change}
        rows = frame(measured("speedup", 1.8, 1.75, 1.85, point=point) for point in points)
        assert why in judge(fast, Results({"figure3": with_settings(rows, points)}, ROLES)).reason


def test_an_average_at_chance_is_undecided_without_a_panel():
    files = "results/winogrande.json"
    rows = [measured("average", 30.0, 28.0, 31.0, variant=name, file=files) for name in ("a", "b")]
    table = with_settings(frame([*rows, measured("winogrande", 50.0, 40.0, 60.0)]), {})
    loss = claim("minus", averages("a", "b"), (-math.inf, 1.5), LOSS)
    for chance, verdict in ((0.3, UNDECIDED), (0.2, AGREES)):
        assert judge(loss, Results({"t": table}, ROLES, chances={"winogrande": chance})).verdict == verdict


@pytest.mark.parametrize(("low", "verdict"), [(43.0, UNDECIDED), (76.0, AGREES)])
def test_a_task_whose_score_of_guessing_is_unknown_does_not_lower_that_of_the_average(low, verdict):
    """Of two averaged tasks; a third that the table shows, at which guessing gets nothing, is not averaged."""
    good = claim("cell", [cell("average")], (40.0, 90.0))
    files = "results/winogrande.json;results/truthfulqa.json"
    rows = [measured("average", low + 1, low, low + 2, file=files), measured("gsm8k", 9.0, 8.0, 10.0)]
    assert judge(good, results(*rows, chances={"winogrande": 0.5, "gsm8k": 0.0})).verdict == verdict


@pytest.mark.parametrize(
    "role, rows, more, reason",
    [
        ("nobody", [], {}, "plays the role nobody"),
        ("small", [], {"absent": {"t": "no model"}}, "t is not made: no model"),
        ("small", [measured("speedup", None, status="oom", reason="no memory")], {}, "no memory"),
    ],
)
def test_roles_and_gaps_are_reasons(role, rows, more, reason):
    assert reason in judge(claim("cell", [cell(role=role)], GAIN), results(*rows, **more)).reason


def test_a_variant_that_stands_in_for_a_stated_one_is_named():
    several = claim("least", [cell("speedup", variant=["swiftkv-40", "swiftkv-50"])], (1.75, 1.95), GAIN)
    rows = [measured("speedup", 1.8, 1.75, 1.85, point=name) for name in ("a", "b")]
    judged = judge(several, results(*rows, stand_ins={"swiftkv-40": "swiftkv-50"}))
    assert judged.verdict == SAME and "swiftkv-50 stands in for swiftkv-40" in judged.reason
    alone = claim("cell", [cell("speedup", variant="swiftkv-40")], GAIN)
    judged = judge(alone, results(*rows, stand_ins={"swiftkv-40": "swiftkv-50"}))
    assert judged.verdict == UNMEASURED and "swiftkv-50 stands in for swiftkv-40" in judged.reason


# The sources' own numbers, with the errors that independent answers to their benchmarks' questions have


def speeds(lines):
    keys = ("model", "memory_gb", "input_length")
    base = {
        tuple(map(line.get, keys)): number(line["tokens_per_second"]) for line in lines if line["variant"] == "baseline"
    }
    for line in lines:
        value = number(line["tokens_per_second"])
        known = {name: line[name] for name in ("model", "variant", "kv_cache")}
        known |= {"point": line.get("memory_gb") or line.get("input_length"), "status": "ok" if value else "oom"}
        known["conditions"] = f"{line.get('gpus', 1)} × NVIDIA H100"
        gain = value / base[tuple(map(line.get, keys))] if value and base[tuple(map(line.get, keys))] else None
        for metric, found in (("tokens_per_second", value), ("speedup", gain)):
            yield measured(metric, found, found and 0.99 * found, found and 1.01 * found, **known)


def scores(line):
    more = {"model": line["model"], "variant": line["variant"], "kv_cache": line.get("kv_cache") or "auto"}
    found = {task: number(line[task]) for task in QUESTIONS if line.get(task)}
    errors = {task: math.sqrt(value * (100 - value) / QUESTIONS[task]) for task, value in found.items()}
    if len(found) == len(QUESTIONS):
        errors["average"] = math.hypot(*errors.values()) / len(found)
        found["average"] = number(line.get("average")) or sum(found.values()) / len(found)
    for metric, value in found.items():
        files = ";".join(f"{task}.json" for task in (QUESTIONS if metric == "average" else [metric]))
        yield measured(metric, value, value - 2 * errors[metric], value + 2 * errors[metric], file=files, **more)


def test_the_sources_own_numbers_contradict_no_claim():
    tables = {}
    for file in (PAPER / f"{name}.csv" for name in ARTIFACTS):
        lines = read_csv(file) if file.exists() else []
        served = lines and "tokens_per_second" in lines[0]
        rows = list(speeds(lines)) if served else [row for line in lines for row in scores(line)]
        if rows:  # a later row of the same case repeats the earlier one
            tables[file.stem] = frame(rows).drop_duplicates(
                ["model", "variant", "kv_cache", "point", "metric"], keep="last"
            )
    points = {limit: {"memory_gib": float(limit), "input_tokens": 2000} for limit in ("80", "40", "20", "16")}
    points |= {length: {"input_tokens": int(length[:-1]) * 1000} for length in ("4K", "16K")}
    chances = {name: task["chance"] for name, task in scale()["tasks"].items() if "chance" in task}
    shown = Results({name: with_settings(table, points) for name, table in tables.items()}, ROLES, chances=chances)
    verdicts = {each.id: judge(each, shown).verdict for each in CLAIMS}
    assert sum(verdict != UNMEASURED for verdict in verdicts.values()) >= 70
    assert OTHER not in verdicts.values()
    agreeing = {name for name, verdict in verdicts.items() if verdict == AGREES}
    assert {"loss-62.5", "merge-below-40", "merge-above-20", "across4-20", "single-80", "gqa-mqa"} <= agreeing
