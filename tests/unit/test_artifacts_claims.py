"""Claims: borne out by the sources' own numbers, never certain without a measured interval, and wrong where numbers are."""

import math

import pytest
from tests.unit.artifact_helpers import PAPER, scale, typed

from pipeline.artifacts import claims, contents
from pipeline.artifacts.claims import (
    AGREES,
    CONTRADICTS,
    GAIN,
    MODELS,
    POSITIVE,
    SECTIONS,
    UNDECIDED,
    UNMEASURED,
    Arithmetic,
    Cell,
    Claim,
    Quantity,
    cell,
    least,
    lost,
    minus,
    most,
    ratio,
)
from pipeline.artifacts.evidence import Scene
from pipeline.artifacts.frame import frame
from pipeline.artifacts.judge import judge
from pipeline.artifacts.published import number, read_csv

QUESTIONS = {  # of each benchmark in full
    "arc-challenge": 1172, "winogrande": 1267, "hellaswag": 10042, "truthfulqa": 817, "mmlu": 14042, "mmlu-cot": 14042,
    "gsm8k": 1319,
}  # fmt: skip
EVERY = [claim for group in SECTIONS.values() for claim in group]
ROLES = {role: {"name": model, "title": model, "published": model} for role, model in MODELS.items()}
ROLES |= {"other": {"name": "other", "title": "Other", "published": "other"}, "nobody": None}
H100 = "1 × NVIDIA H100 80GB HBM3, vLLM 0.32.0"


def made(metric, value, low=None, high=None, *, model="llama-3.1-8b", variant="swiftkv-50", **more):
    known = {"source": "measured", "kv_cache": "auto", "status": "ok", "n": 7, "conditions": H100}
    return (
        known | {"model": model, "variant": variant, "metric": metric, "value": value, "low": low, "high": high} | more
    )


def scene(*rows, points=None, **more):
    return Scene({"t": frame(rows)}, ROLES, points or {}, **more)


def claim(quantity, stated, weaker=None, **more):
    return Claim("c", "A sentence", "paper", quantity, stated, weaker, **more)


SPEED = Cell("t", "speedup", "small", gpus=1)


def test_ids_are_unique_and_cells_are_of_what_the_artifact_shows():
    assert len({each.id for each in EVERY}) == len(EVERY) > 140
    config = scale()
    for each in EVERY:
        for one in claims.cells(each):
            entry = config["artifacts"][one.artifact]
            scopes = [scope for scope in entry.get("parts", [entry]) if "variants" in scope]
            roles = {role for scope in entry.get("parts", [entry]) for role in scope.get("models", [])}
            assert entry["kind"] == "absent" or one.role in roles, each.id
            variants = (one.variant,) if isinstance(one.variant, str) else one.variant
            shown = {case[0] for scope in scopes for case in contents.cases(typed(config), scope["variants"])}
            assert not shown or shown >= set(variants), each.id


def test_what_is_stated_is_within_its_weaker_form():
    for each in (each for each in EVERY if each.weaker is not None):
        (low, high), (weak_low, weak_high) = each.stated, each.weaker
        assert weak_low is None or (low is not None and weak_low <= low), each.id
        assert weak_high is None or (high is not None and weak_high >= high), each.id


def test_arithmetic_is_of_the_stated_model_and_agrees():
    verdicts = {each.id: judge(each, Scene({}, {})) for each in EVERY if isinstance(each.quantity, Arithmetic)}
    assert len(verdicts) >= 10 and {found.verdict for found in verdicts.values()} == {AGREES}
    assert verdicts["memory-62"].found.value == pytest.approx(62.5)


# Verdicts


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.75, 1.85, AGREES), (1.01, 1.9, UNDECIDED), (None, None, UNDECIDED), (0.9, 0.98, CONTRADICTS)],
)
def test_a_verdict_is_by_the_measured_interval(low, high, verdict):
    value = 1.8 if high is None or high > 1 else 0.95
    assert judge(claim(cell(SPEED), (1.75, 1.95), GAIN), scene(made("speedup", value, low, high))).verdict == verdict


@pytest.mark.parametrize("interval", [(None, None), (1.60, 1.62), (1.3, 1.7)])
def test_a_prediction_of_1_61_does_not_agree_with_1_8_to_1_9(interval):
    assert judge(claim(cell(SPEED), (1.75, 1.95), GAIN), scene(made("speedup", 1.61, *interval))).verdict != AGREES


def test_another_model_or_machine_is_judged_by_the_weaker_form_alone_and_says_so():
    row = made("speedup", 1.3, 1.2, 1.4, conditions="Some Xeon, 2 cores, vLLM 0.32.0")
    found = judge(claim(cell(SPEED), (1.75, 1.95), GAIN), scene(row))
    assert (found.verdict, found.as_stated) == (AGREES, False)
    assert "on Some Xeon in place of 1 × H100" in found.reason
    assert judge(claim(cell(SPEED), (1.75, 1.95)), scene(row)).verdict == UNMEASURED


def test_a_large_error_does_not_help_a_small_loss_to_agree():
    rows = [
        made("average", value, value - 0.5, value + 0.5, variant=variant)
        for variant, value in (("baseline", 73.0), ("swiftkv-50", 71.0))
    ]
    sides = [Cell("t", "average", "small", variant) for variant in ("baseline", "swiftkv-50")]
    found = judge(lost("c", "about a point", "paper", minus(*sides), 1.5), scene(*rows))
    assert found.verdict == UNDECIDED and found.as_stated is False


def test_paired_differences_come_before_independent_ones_and_kl_is_a_remark():
    rows = [made("average", value, value - 4, value + 4, variant=name) for name, value in (("a", 60.0), ("b", 58.0))]
    against = {"against_model": "llama-3.1-8b", "against": "a", "against_kv_cache": "auto", "variant": "b"}
    rows += [made("average", -2.0, -2.5, -1.5, **against), made("kl", 0.3, 0.2, 0.4, **against)]
    quantity = minus(*(Cell("t", "average", "small", variant) for variant in ("a", "b")))
    found = judge(claim(quantity, POSITIVE, POSITIVE, kl=True), scene(*rows))
    assert (found.verdict, found.found[2:]) == (AGREES, (1.5, 2.5))
    assert "KL to the teacher, which is ours" in found.reason
    assert judge(claim(quantity, POSITIVE, POSITIVE), scene(*rows[:2])).verdict == UNDECIDED


def test_what_rises_may_not_fall_between():
    points = {f"p{length}": {"input_tokens": length} for length in (1000, 2000, 4000)}

    def judged(*values):
        rows = [
            made("speedup", value, value - 0.02, value + 0.02, point=point)
            for point, value in zip(points, values, strict=True)
        ]
        return judge(claim(Quantity("rises", (SPEED,)), POSITIVE, POSITIVE), scene(*rows, points=points)).verdict

    assert [judged(1.2, 1.4, 1.6), judged(1.2, 1.6, 1.4), judged(1.2, 1.21, 1.2)] == [AGREES, CONTRADICTS, UNDECIDED]


def test_roles_stand_ins_and_gaps_are_reasons():
    reasons = [
        judge(claim(cell(SPEED._replace(role="nobody")), GAIN), scene()).reason,
        judge(claim(cell(SPEED), GAIN), scene(stand_ins={"swiftkv-50": "swiftkv-25"})).reason,
        judge(claim(cell(SPEED), GAIN), scene(absent={"t": "no model"})).reason,
        judge(claim(cell(SPEED), GAIN), scene(made("speedup", None, status="oom", reason="no memory"))).reason,
    ]
    wanted = ("plays the role nobody", "swiftkv-25 stands in for", "t is not made: no model", "out of memory")
    assert all(want in reason for want, reason in zip(wanted, reasons, strict=True)), reasons


def test_without_any_number_nothing_is_measured():
    """As at a scale that measures other points, rates and tasks."""
    tables = {cell.artifact: frame([]) for claim in EVERY for cell in claims.cells(claim)}
    nothing = Scene(tables, ROLES)
    verdicts = {
        claim.id: judge(claim, nothing).verdict for claim in EVERY if not isinstance(claim.quantity, Arithmetic)
    }
    assert set(verdicts.values()) == {UNMEASURED}


def test_forty_made_up_contradictions_never_agree():
    rows = []
    for place in range(10):
        rows += [
            made("speedup", 0.9 - 0.02 * place, 0.88 - 0.02 * place, 0.93, point=f"p{place}"),
            made("average", 70.0, 69.5, 70.5, variant="baseline", part=str(place)),
        ]
    slower, faster = (Cell("t", "rate", "small", variant) for variant in ("slow", "fast"))
    for place in range(10):
        one = [row for row in rows if row.get("point") == f"p{place}"]
        lower = made("average", 60.0 + place / 2, 59.5 + place / 2, 60.5 + place / 2)
        both = [made("average", 70.0, 69.5, 70.5, variant="baseline"), lower]
        rates = [
            made("rate", 1.0, 0.99, 1.01, variant="slow"),
            made("rate", 2.0 + place, 1.9 + place, 2.1 + place, variant="fast"),
        ]
        averages = [Cell("t", "average", "small", variant) for variant in ("baseline", "swiftkv-50")]
        verdicts = [
            judge(claim(most(SPEED), (1.95, None), GAIN), scene(*one)).verdict,
            judge(claim(least(SPEED), (1, None), (1, None)), scene(*one)).verdict,
            judge(lost("c", "", "", minus(*averages), 1.5), scene(*both)).verdict,
            judge(claim(ratio(slower, faster), (1, None), (1, None)), scene(*rates)).verdict,
        ]
        assert verdicts == [CONTRADICTS] * 4


# The sources' own numbers, with the errors that independent answers to their benchmarks' questions have


def published_rows(name):
    rows = []
    for line in read_csv(PAPER / f"{name}.csv"):
        model = line["model"]
        if "memory_gb" in line or "input_length" in line:
            for column, variant in (("baseline", "baseline"), ("merge_all_layers", "merge-all-layers"),
                                    ("swiftkv_50", "swiftkv-50"), ("swiftkv_50_across4", "swiftkv-50-across4"),
                                    ("swiftkv_50_across4_fp8", "swiftkv-50-across4")):  # fmt: skip
                value, base = number(line.get(column)), number(line["baseline"])
                point = line.get("memory_gb") or line.get("input_length")
                more = {"kv_cache": "fp8" if column.endswith("fp8") else "auto", "point": point, "variant": variant}
                more |= {"conditions": f"{line.get('gpus', 1)} × NVIDIA H100", "status": "ok" if value else "oom"}
                within = {"low": value and 0.99 * value, "high": value and 1.01 * value}
                rows.append(made("tokens_per_second", value, model=model, **more) | within)
                gain = value / base if value and base else None
                ends = {"low": gain and 0.99 * gain, "high": gain and 1.01 * gain}
                rows.append(made("speedup", gain, model=model, **more) | ends)
            continue
        scores = {task: number(line[task]) for task in QUESTIONS if line.get(task)}
        errors = {task: math.sqrt(value * (100 - value) / QUESTIONS[task]) for task, value in scores.items()}
        if len(scores) == 7:
            scores["average"] = number(line.get("average")) or sum(scores.values()) / 7
            errors["average"] = math.hypot(*errors.values()) / 7
        more = {"model": model, "variant": line["variant"], "kv_cache": line.get("kv_cache") or "auto"}
        for metric, value in scores.items():
            rows.append(made(metric, value, value - 2 * errors[metric], value + 2 * errors[metric], **more))
    return rows


def test_the_sources_own_numbers_contradict_no_claim():
    tables = {
        name: frame(
            {
                (row["model"], row["variant"], row["kv_cache"], row.get("point"), row["metric"]): row for row in rows
            }.values()
        )
        for name in claims.ARTIFACTS
        if (PAPER / f"{name}.csv").exists() and (rows := published_rows(name))
    }
    points = {limit: {"memory_gib": float(limit), "input_tokens": 2000} for limit in ("80", "40", "20", "16")}
    points |= {length: {"input_tokens": int(length[:-1]) * 1000} for length in ("4K", "16K")}
    verdicts = {each.id: judge(each, Scene(tables, ROLES, points)) for each in EVERY}
    judged = {name: found for name, found in verdicts.items() if found.verdict != UNMEASURED}
    assert len(judged) >= 70
    assert {name for name, found in judged.items() if found.verdict == CONTRADICTS} == set()
    agreeing = {name for name, found in judged.items() if found.verdict == AGREES}
    assert {"loss-62.5", "merge-below-40", "merge-above-20", "across4-20", "single-80", "gqa-mqa"} <= agreeing
