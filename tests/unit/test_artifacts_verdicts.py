"""Verdicts on claims stay within their error bars, and on other models and hardware they say only the direction."""

import pytest
from tests.unit.claim_helpers import MODEL, OTHER, made_claim, made_row, made_scene

from pipeline.artifacts.quantities import MODEL as OTHER_MODEL
from pipeline.artifacts.quantities import REQUESTS, SETTING
from pipeline.artifacts.verdicts import (
    AGREES,
    ARITHMETIC,
    CHOSEN,
    CONTRADICTS,
    SAME,
    UNDECIDED,
    UNMEASURED,
    judge,
)
from swiftkv.errors import UserError


def verdict(rows, made, **changes):
    return judge(made, made_scene(rows, **changes)).verdict


def gap(*variants, how="difference", **keys):
    where = [{"role": "small", "variant": name} for name in variants or ("a", "b")]
    return {
        "id": "c", "text": "x", "place": "paper", how: [{"artifact": "t", "column": "x", "where": one} for one in where], **keys
    }  # fmt: skip


def pair(first, second, **values):
    """The line of a table with a paired difference."""
    names = {"kv_cache": "auto", "against_model": "mine", "against_variant": second, "against_kv_cache": "auto"}
    return made_row(first, row="difference", **names, **values)


def test_the_table_of_verdicts():
    """On the claim's own case: stated 1.4 to 1.6, weaker form above 0.5."""
    made = made_claim(stated=[1.4, 1.6], direction=[0.5, None])
    expected = {
        (1.5, 0.1): AGREES,
        (1.9, 0.2): AGREES,  # reaches down to 1.5
        (1.0, 0.2): AGREES,  # reaches up to 1.4, and stays above 0.5
        (1.2, 0.05): SAME,  # ends at 1.3
        (3.0, 0.1): SAME,
        (0.6, 0.1): UNDECIDED,  # reaches below 0.5
        (1.5, 0.6): UNDECIDED,  # so does this, with the stated value itself
        (1.5, None): UNDECIDED,
        (0.2, 0.1): CONTRADICTS,
        (0.2, 0.2): UNDECIDED,
        (0.2, None): UNDECIDED,
    }
    found = {key: verdict([made_row(x=key[0], x_stderr=key[1])], made) for key in expected}
    assert found == expected


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [(1.5, 0.1, SAME), (0.7, 0.05, SAME), (0.6, 0.1, UNDECIDED), (0.2, 0.1, CONTRADICTS), (0.2, None, UNDECIDED)],
)
def test_another_model_decides_only_the_direction(value, stderr, expected):
    rows = [{"model": "small", "variant": "swiftkv-50", "x": value, "x_stderr": stderr}]
    found = judge(made_claim(stated=[1, None], direction=[0.5, None]), made_scene(rows, roles={"small": OTHER}))
    assert (found.verdict, found.measured.other) == (expected, OTHER_MODEL)
    assert "Small model in place of theirs" in found.reason and found.measured.models == ("Small model",)


@pytest.mark.parametrize("more", [{}, {"direction": [0.5, None], "own": True}])
def test_without_a_weaker_form_another_model_decides_nothing(more):
    rows = [{"model": "small", "variant": "swiftkv-50", "x": 5.0, "x_stderr": 0.1}]
    made = made_claim(stated=[1, None], **more)
    found = judge(made, made_scene(rows, roles={"small": OTHER}))
    assert (
        found.verdict == UNMEASURED and found.measured.quantity.value == 5 and found.reason.startswith("needs theirs")
    )
    assert verdict([made_row(x=0.2, x_stderr=0.1)], made) == CONTRADICTS
    assert verdict([made_row(x=1.5, x_stderr=0.1)], made) == AGREES


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [
        (0.12, 0.5, AGREES),  # at most 0.125 stated: no benchmark has smaller errors
        (0.24, 0.5, AGREES),
        (0.12, 0.05, AGREES),
        (0.2, 0.02, SAME),  # clearly above the stated, clearly below twice
        (0.3, 0.5, UNDECIDED),  # more than twice
        (0.12, 0.8, UNDECIDED),  # a loss of 1.6 points would not be seen
        (-1.0, 4.3, UNDECIDED),
        (2.9, 0.5, CONTRADICTS),
        (2.9, 0.01, CONTRADICTS),
    ],
)
def test_a_small_loss_is_at_most_twice_the_stated_one(value, stderr, expected):
    rows = [made_row("a", x=70.0, x_stderr=stderr), made_row("b", x=70.0 - value, x_stderr=0.0)]
    assert verdict(rows, gap(loss=0.125)) == expected


@pytest.mark.parametrize(
    ("conditions", "expected", "other"),
    [
        ({"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1"}, AGREES, None),
        ({"conditions": "8 × NVIDIA H100 80GB HBM3, vLLM 1"}, SAME, SETTING),
        ({"conditions": "4 × NVIDIA A100, vLLM 1"}, SAME, SETTING),
        ({"conditions": "AMD EPYC, 2 cores"}, SAME, SETTING),
        ({"device": "NVIDIA H100 80GB HBM3", "gpus": 4.0}, AGREES, None),
        ({"device": "AMD EPYC, 2 cores", "gpus": 0.0}, SAME, SETTING),
        ({}, SAME, SETTING),
        ({"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1, dummy weights"}, SAME, REQUESTS),
        ({"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1", "output_tokens": 16.0}, SAME, REQUESTS),
        ({"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1", "output_tokens": 256.0}, AGREES, None),
    ],
)
def test_speed_agrees_only_on_the_papers_hardware_and_requests(conditions, expected, other):
    made = made_claim(stated=[1, None], direction=[1, None], hardware="4 x H100")
    found = judge(
        made, made_scene([made_row(x=2.0, x_stderr=0.1, **conditions)], requests={"t": {"output_tokens": 256}})
    )
    assert (found.verdict, found.measured.other) == (expected, other)
    assert ("output_tokens 16 in place of 256" in found.reason) == (conditions.get("output_tokens") == 16)


def test_an_absolute_speed_is_judged_on_other_requests_but_not_on_other_hardware():
    made = made_claim(stated=[100, None], direction=[90, None], own=True, hardware="4 x H100")
    row = {"x": 110.0, "x_stderr": 1.0}
    assert verdict([made_row(**row, conditions="4 × NVIDIA H100, dummy weights")], made) == SAME
    assert verdict([made_row(**row, conditions="4 × NVIDIA A100")], made) == UNMEASURED


def test_a_speed_without_an_error_decides_nothing_unless_a_scatter_is_stated():
    row = made_row(x=2.0, conditions="1 × NVIDIA H100")
    made = made_claim(stated=[1.8, None], direction=[1.5, None], hardware="1 x H100")
    found = judge(made, made_scene([row]))
    assert (found.verdict, found.reason) == (UNDECIDED, "no error known")
    assert verdict([row], made, scatter=0.1) == AGREES  # 1.6 to 2.4
    assert verdict([row], made, scatter=0.2) == UNDECIDED
    assert verdict([row | {"x_stderr": 0.4}], made, scatter=0.01) == UNDECIDED  # a measured error comes first
    reduced = {"id": "c", "largest": {**made["cell"], "column": "y_reduction_percent"}, "hardware": "1 x H100"}
    row |= {"y_reduction_percent": 40.0}  # to 60 % of a time, 10 % of which are 6
    assert verdict([row], reduced | {"stated": [27.9, 52.1]}, scatter=0.1) == AGREES
    assert verdict([row], reduced | {"stated": [28.1, 52.1]}, scatter=0.1) == UNDECIDED


def test_what_is_no_measurement():
    made = made_claim(stated=[49.5, 50.5], direction=[40, 60], by="arithmetic")
    assert verdict([made_row(x=50.0)], made) == ARITHMETIC
    assert verdict([made_row(x=53.0)], made) == CONTRADICTS
    small = {"roles": {"small": OTHER}}
    assert verdict([{"model": "small", "x": 53.0}], made, **small) == ARITHMETIC
    assert verdict([{"model": "small", "x": 63.0}], made, **small) == CONTRADICTS
    counted = made_claim(stated=[2.66, None], direction=[2, None], by="count")
    assert [verdict([made_row(x=x)], counted) for x in (2.664, 2.5, 1.9)] == [AGREES, SAME, CONTRADICTS]


def test_errors_of_a_difference_add_in_quadrature():
    rows = [made_row("a", x=10.0, x_stderr=3.0), made_row("b", x=4.0, x_stderr=4.0)]
    quantity = judge(gap(stated=[0, None]), made_scene(rows)).measured.quantity
    assert (quantity.value, quantity.stderr) == (6.0, 5.0)
    assert verdict(rows, gap(stated=[0, None])) == UNDECIDED  # 6 - 2 * 5 < 0
    assert judge(gap(stated=[0, None]), made_scene([rows[0], made_row("b", x=4.0)])).measured.quantity.stderr is None


def test_differences_of_one_table_are_paired_where_it_has_them():
    rows = [made_row(name, x=x, x_stderr=5.0, kv_cache="auto") for name, x in (("a", 10.0), ("b", 4.0), ("c", 9.0))]
    rows += [pair("a", "b", x_difference=6.0, x_difference_stderr=1.0), pair("c", "b", x_difference_stderr=2.0)]

    def found(*variants):
        quantity = judge(gap(*variants, stated=[0, None]), made_scene(rows)).measured.quantity
        return quantity.value, quantity.stderr

    assert found("a", "b") == (6.0, 1.0)
    assert found("b", "a") == (-6.0, 1.0)
    assert found("a", "c") == (1.0, pytest.approx(50**0.5))
    assert found("a", "b", "c", "b") == (1.0, pytest.approx(5**0.5))  # of four: 6 - 5
    assert verdict(rows, gap(stated=[0, None])) == AGREES


def test_closeness_gives_the_direction_where_scores_leave_it_undecided():
    def rows(kl, score=5.0, error=4.0):
        return [
            made_row("a", x=10.0 + score, x_stderr=error, kl=0.5, kl_stderr=0.03, kv_cache="auto"),
            made_row("b", x=10.0, x_stderr=0.0, kl=kl, kl_stderr=0.03, kv_cache="auto"),
            pair("a", "b", kl_difference=0.5 - kl, kl_difference_stderr=0.01),
        ]

    made = gap(stated=[4.45, 4.55], direction=[0, None], unit="points", closeness=True)
    for kl, expected in ((0.44, CONTRADICTS), (0.56, SAME)):
        found = judge(made, made_scene(rows(kl)))
        assert (found.verdict, found.measured.unit) == (expected, "nats a token")
        assert found.measured.quantity.value == pytest.approx(kl - 0.5)
        assert "which is ours: the scores leave it undecided (5 ± 4)" in found.reason
    for unclear in (rows(0.51), rows(0.44, error=0.5)):  # neither decides; the scores alone do
        assert judge(made, made_scene(unclear)).measured.unit == "points"
    same = [row | {"kl": 0.0, "kl_stderr": 0.0} for row in rows(0.5)[:2]]
    assert judge(made, made_scene(same)).verdict == UNDECIDED
    unscored = [row | {"x": None} for row in rows(0.44)]
    found = judge(made, made_scene(unscored))
    assert found.verdict == CONTRADICTS and "the scores are not there" in found.reason


def test_errors_of_a_ratio_are_of_first_order():
    rows = [made_row("a", x=6.0, x_stderr=0.6), made_row("b", x=2.0, x_stderr=0.1)]
    quantity = judge(gap(how="ratio", stated=[1, None]), made_scene(rows)).measured.quantity
    assert quantity.value == pytest.approx(3.0)
    assert quantity.stderr == pytest.approx(3.0 * (0.1**2 + 0.05**2) ** 0.5)


def rising(*values, error=0.01):
    made = made_claim("rises", stated=[0, None], direction=[-0.05, None])
    made["rises"]["along"] = "n"
    return judge(made, made_scene([made_row(x=value, x_stderr=error, n=float(n)) for n, value in enumerate(values)]))


def test_what_rises_has_to_rise_by_its_error():
    assert rising(0.5, 0.6, 0.7).verdict == AGREES
    assert rising(0.5, 0.7, 0.69).verdict == AGREES  # a fall within its error
    assert rising(0.5, 0.74, 0.70, error=0.002).verdict == SAME  # a clear one, of less than 0.05
    assert rising(0.5, 0.8, 0.7).verdict == CONTRADICTS
    assert rising(0.6, 0.6, 0.6).verdict == rising(0.6, 0.6, 0.6, error=0.0).verdict == UNDECIDED
    assert rising(0.60, 0.58, 0.56, error=0.002).verdict == CONTRADICTS
    assert rising(0.50, 0.52).verdict == UNDECIDED
    assert rising(0.5, 0.6, error=None).verdict == UNDECIDED
    assert rising(0.5).verdict == UNMEASURED


def test_largest_smallest_and_rises():
    rows = [made_row(x=value, n=float(n)) for n, value in enumerate([1.0, 3.0, 2.75, 2.5])]

    def value(made):
        return judge(made, made_scene(rows[::-1])).measured.quantity.value

    assert [value(made_claim(how, stated=[0, None])) for how in ("largest", "smallest")] == [3.0, 1.0]
    made = made_claim("rises", stated=[0, None])
    made["rises"]["along"] = "n"
    assert value(made) == -0.5  # of both falls together, in any order of rows
    with pytest.raises(UserError, match="same n"):
        judge(made, made_scene([rows[0], rows[0]]))


def test_of_many_that_have_to_keep_to_a_bound_the_least_certain_decides():
    sure, unsure = made_row(x=1.1, x_stderr=0.01), made_row(x=1.2, x_stderr=0.15)
    slower = made_claim("smallest", stated=[1, None], direction=[1, None])
    assert (verdict([sure], slower), verdict([sure, unsure], slower)) == (AGREES, UNDECIDED)
    faster = made_claim("largest", stated=[None, 1.3], direction=[None, 1.3])
    assert verdict([unsure, made_row(x=1.25, x_stderr=0.01)], faster) == UNDECIDED
    best = made_claim("largest", stated=[1.2, None], direction=[1, None])  # one is enough
    assert verdict([unsure, made_row(x=1.25, x_stderr=0.01)], best) == AGREES


def test_empty_cells_of_many_are_counted():
    rows = [made_row(x=1.0, x_stderr=0.1), made_row(x=None)]
    found = judge(made_claim("smallest", stated=[0, None]), made_scene(rows))
    assert found.verdict == AGREES and "1 of 2 cells are empty" in found.reason


def test_selectors():
    rows = [
        made_row(x=float(rate), rate=rate, point=point)
        for point, rates in (("p", (1, 2, 4)), ("q", (3, 5)))
        for rate in rates
    ]
    rows += [made_row("baseline", x=9.0, rate=1, point="p"), made_row("other", x=8.0, rate=5, point="q")]

    def chosen(how="largest", **where):
        found = judge(made_claim(how, where, stated=[0, None]), made_scene(rows))
        return found.measured.quantity.value, found.reason.removesuffix("; no error known")

    assert chosen(variant="swiftkv-50", rate="lowest", how="cell") == (1, "rate 1, the lowest")
    named = ["swiftkv-50", "other"]
    assert chosen(variant=named, rate="highest") == (8, "rate 5, the highest")
    assert chosen(variant="swiftkv-50", rate={"is": "lowest", "per": "point"}) == (
        3,
        "rate 1 or 3, the lowest of each point",
    )
    above = chosen(variant="swiftkv-50", rate={"not": "lowest", "per": "point"}, how="smallest")
    assert above == (2, "rate above 1 or 3, the lowest of each point")
    assert chosen(variant="baseline", rate=1) == (9, "no error known")


def test_the_end_of_a_column_says_where_the_sources_have_another():
    rows = [made_row(x=1.5, x_stderr=0.1, n=512.0), made_row(x=2.0, x_stderr=0.1, n=6000.0)]
    for stated, expected in ((32000, SAME), (6144, AGREES)):
        made = made_claim(where={"n": {"is": "highest", "stated": stated}}, stated=[1.9, 2.1], direction=[1, None])
        found = judge(made, made_scene(rows))
        assert (found.verdict, found.measured.quantity.value) == (expected, 2.0)
        assert ("n 6,000 in place of 32,000" in found.reason) == (expected == SAME)


def test_a_number_takes_the_nearest_and_says_so_where_it_is_another():
    rows = [made_row(x=1.5, x_stderr=0.1, n=512.0), made_row(x=2.0, x_stderr=0.1, n=6000.0)]
    found = judge(made_claim(where={"n": 128000}, stated=[1.9, 2.1], direction=[1, None]), made_scene(rows))
    assert (found.verdict, found.measured.quantity.value) == (SAME, 2.0)
    assert "n 6,000 in place of 128,000" in found.reason
    made = made_claim(where={"n": 6144}, stated=[1.9, 2.1], direction=[1, None])
    assert verdict(rows, made) == AGREES  # 2 % away


def test_an_average_over_fewer_benchmarks_is_another():
    made = made_claim(stated=[40, None], direction=[40, None])
    made["cell"]["column"] = "average"
    for tasks, expected in (("a b c d e f", SAME), ("a b c d e f g", AGREES)):
        assert verdict([made_row(average=50.0, average_stderr=1.0, average_tasks=tasks)], made) == expected


def test_words_are_compared():
    made = made_claim(stated="oom")
    assert (verdict([made_row(x="oom")], made), verdict([made_row(x="ok")], made)) == (AGREES, CONTRADICTS)
    assert verdict([{"model": "small", "x": "oom"}], made, roles={"small": OTHER}) == SAME


def test_a_limit_that_was_chosen_proves_nothing():
    made = made_claim(where={"gb": {"is": "lowest", "stated": 16}}, stated="oom", chosen="gb")
    assert verdict([made_row(x="oom", gb=0.262)], made) == CHOSEN
    assert verdict([made_row(x="ok", gb=0.262)], made) == CONTRADICTS
    assert verdict([made_row(x="oom", gb=16.0)], made) == AGREES


@pytest.mark.parametrize(
    ("changes", "made", "reason"),
    [
        ({"tables": {}}, {}, "t is not among this scale's artifacts"),
        ({"absent": {"t": "no reason"}}, {}, "t is not made: no reason"),
        ({"stand_ins": {"a": "b"}}, {"where": {"variant": "a"}}, "b stands in for a"),
        ({}, {"where": {"variant": "none"}}, "t has no row of My model with variant none"),
        ({}, {"where": {"variant": ["a", "b"]}}, "t has no row of My model with variant a or b"),
        ({}, {"where": {"role": "large"}}, "no model of this scale plays the role large"),
        ({"tables": {"t": [made_row(x=None, reason="broken")]}}, {}, "no x, broken"),
        ({"tables": {"t": [made_row(x=None, status="oom")]}}, {}, "no x, out of memory"),
        ({"tables": {"t": [made_row(x="missing", status="missing", reason="later")]}}, {}, "no x, later"),
        ({"roles": {"small": MODEL, "large": MODEL}}, {"against": "large"}, "plays both"),
    ],
)
def test_what_is_not_measured_says_why(changes, made, reason):
    found = judge(made_claim(stated=[0, None], **made), made_scene([made_row(x=1.0)], **changes))
    assert (found.verdict, found.measured) == (UNMEASURED, None) and reason in found.reason


def test_a_cell_that_matches_several_rows_is_an_error():
    with pytest.raises(UserError, match="claim c: its cell matches 2 rows of t.csv"):
        judge(made_claim(stated=[0, None]), made_scene([made_row(x=1.0), made_row(x=1.0)]))
    with pytest.raises(UserError, match="t.csv has no column 'y'"):
        judge(made_claim(where={"y": 1}, stated=[0, None]), made_scene([made_row(x=1.0)]))


def test_rows_of_published_statements_are_not_measurements():
    rows = [made_row(x=1.0, row="measured"), made_row(x=2.0, row="published")]
    assert judge(made_claim(stated=[0, None]), made_scene(rows)).measured.quantity.value == 1.0


@pytest.mark.parametrize(("value", "stderr", "said"), [(1.9, None, True), (1.7, 0.1, True), (1.7, 0.04, False)])
def test_a_speedup_that_reaches_above_its_limit_is_said_to(value, stderr, said):
    row = made_row(speedup=value, speedup_stderr=stderr, speedup_limit=1.8)
    for how in ("cell", "largest"):
        cell = {"artifact": "t", "column": "speedup", "where": {"role": "small"}}
        found = judge({"id": "c", "text": "x", "place": "paper", how: cell, "stated": [1, None]}, made_scene([row]))
        assert ("above the 1.80× that the FLOP count allows" in found.reason) == said
