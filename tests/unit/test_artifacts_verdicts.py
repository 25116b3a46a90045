"""Verdicts on claims stay within their error bars, and on other models and hardware they say only the direction."""

import pytest
from tests.unit.claim_helpers import MODEL, OTHER, made_claim, made_row, made_scene

from pipeline.artifacts.quantities import MODEL as OTHER_MODEL
from pipeline.artifacts.quantities import REQUESTS, SETTING
from pipeline.artifacts.verdicts import AGREES, ARITHMETIC, CHOSEN, CONTRADICTS, SAME, UNDECIDED, UNMEASURED, judge
from swiftkv.errors import UserError


def verdict(rows, made, **changes):
    return judge(made, made_scene(rows, **changes)).verdict


def quantity(rows, made):
    found = judge(made, made_scene(rows)).measured.quantity
    return found.value, found.stderr


def gap(*variants, how="difference", **keys):
    where = [{"role": "small", "variant": name} for name in variants or ("a", "b")]
    return {
        "id": "c", "text": "x", "place": "paper", how: [{"artifact": "t", "column": "x", "where": one} for one in where], **keys
    }  # fmt: skip


def pair(first, second, **values):
    """The line of a table with a paired difference."""
    names = {"kv_cache": "auto", "against_model": "mine", "against_variant": second, "against_kv_cache": "auto"}
    return made_row(first, row="difference", **names, **values)


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [
        (1.5, 0.1, AGREES),
        (1.9, 0.2, AGREES),  # reaches down to 1.5
        (1.2, 0.05, SAME),  # ends at 1.3
        (3.0, 0.1, SAME),
        (1.5, 0.6, UNDECIDED),  # reaches below 0.5, with the stated value itself
        (1.5, None, UNDECIDED),
        (0.2, 0.1, CONTRADICTS),
        (0.2, 0.2, UNDECIDED),
    ],
)
def test_the_table_of_verdicts(value, stderr, expected):
    """Stated 1.4 to 1.6, weaker form above 0.5; on another model only the direction is decided."""
    rows = [made_row(x=value, x_stderr=stderr)]
    made = made_claim(stated=[1.4, 1.6], direction=[0.5, None])
    assert verdict(rows, made) == expected
    found = judge(made, made_scene([rows[0] | {"model": "small"}], roles={"small": OTHER}))
    assert found.verdict == (SAME if expected == AGREES else expected) and found.measured.other == OTHER_MODEL


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [
        (0.12, 0.5, AGREES),  # at most 0.125 stated: no benchmark has smaller errors
        (0.2, 0.02, SAME),  # clearly above the stated, clearly below twice
        (0.12, 0.8, UNDECIDED),  # a loss of 1.6 points would not be seen
        (2.9, 0.5, CONTRADICTS),
    ],
)
def test_a_small_loss_is_at_most_twice_the_stated_one(value, stderr, expected):
    rows = [made_row("a", x=70.0, x_stderr=stderr), made_row("b", x=70.0 - value, x_stderr=0.0)]
    assert verdict(rows, gap(loss=0.125)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.5, 0.7, 0.69), AGREES), ((0.5, 0.8, 0.7), CONTRADICTS), ((0.6, 0.6, 0.6), UNDECIDED), ((0.5,), UNMEASURED)],
)
def test_what_rises_has_to_rise_by_its_error(values, expected):
    made = made_claim("rises", stated=[0, None], direction=[-0.05, None])
    made["rises"]["along"] = "n"
    assert verdict([made_row(x=x, x_stderr=0.01, n=float(n)) for n, x in enumerate(values)], made) == expected


H100 = {"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1"}


@pytest.mark.parametrize(
    ("conditions", "expected", "other"),
    [
        (H100, AGREES, None),
        ({"conditions": "8 × NVIDIA H100 80GB HBM3, vLLM 1"}, SAME, SETTING),
        ({"conditions": "4 × NVIDIA A100, vLLM 1"}, SAME, SETTING),
        ({"device": "NVIDIA H100 80GB HBM3", "gpus": 4.0}, AGREES, None),
        ({"device": "AMD EPYC, 2 cores", "gpus": 0.0}, SAME, SETTING),
        ({"conditions": H100["conditions"] + ", dummy weights"}, SAME, REQUESTS),
        (H100 | {"output_tokens": 16.0}, SAME, REQUESTS),
    ],
)
def test_speed_agrees_only_on_the_papers_hardware_and_requests(conditions, expected, other):
    made = made_claim(stated=[1, None], direction=[1, None], hardware="4 x H100")
    scene = made_scene([made_row(x=2.0, x_stderr=0.1, **conditions)], requests={"t": {"output_tokens": 256}})
    found = judge(made, scene)
    assert (found.verdict, found.measured.other) == (expected, other)


def test_arithmetic_and_counts_have_no_error():
    made = made_claim(stated=[49.5, 50.5], direction=[40, 60], by="arithmetic")
    assert [verdict([made_row(x=x)], made) for x in (50.0, 53.0)] == [ARITHMETIC, CONTRADICTS]
    small = {"roles": {"small": OTHER}}
    assert [verdict([{"model": "small", "x": x}], made, **small) for x in (53.0, 63.0)] == [ARITHMETIC, CONTRADICTS]
    counted = made_claim(stated=[2.66, None], direction=[2, None], by="count")
    assert [verdict([made_row(x=x)], counted) for x in (2.664, 2.5, 1.9)] == [AGREES, SAME, CONTRADICTS]


def test_differences_of_one_table_are_paired_where_it_has_them():
    rows = [made_row(name, x=x, x_stderr=5.0, kv_cache="auto") for name, x in (("a", 10.0), ("b", 4.0), ("c", 9.0))]
    rows += [pair("a", "b", x_difference=6.0, x_difference_stderr=1.0), pair("c", "b", x_difference_stderr=2.0)]
    for variants, expected in {
        "ab": (6.0, 1.0),
        "ba": (-6.0, 1.0),
        "ac": (1.0, 50**0.5),
        "abcb": (1.0, 5**0.5),
    }.items():
        assert quantity(rows, gap(*variants, stated=[0, None])) == pytest.approx(expected)
    assert verdict(rows, gap(stated=[0, None])) == AGREES
    assert verdict(rows[:3], gap(stated=[0, None])) == UNDECIDED  # 6 - 2 * 7.1 < 0
    assert quantity([rows[0], made_row("b", x=4.0)], gap(stated=[0, None])) == (6.0, None)
    ratio = quantity(
        [made_row("a", x=6.0, x_stderr=0.6), made_row("b", x=2.0, x_stderr=0.1)], gap(how="ratio", stated=[1, None])
    )
    assert ratio == pytest.approx((3.0, 3.0 * (0.1**2 + 0.05**2) ** 0.5))


def test_words_are_compared_and_a_limit_that_was_chosen_proves_nothing():
    made = made_claim(stated="oom")
    assert (verdict([made_row(x="oom")], made), verdict([made_row(x="ok")], made)) == (AGREES, CONTRADICTS)
    assert verdict([{"model": "small", "x": "oom"}], made, roles={"small": OTHER}) == SAME
    made = made_claim(where={"gb": {"is": "lowest", "stated": 16}}, stated="oom", chosen="gb")
    assert [verdict([made_row(x="oom", gb=gb)], made) for gb in (0.262, 16.0)] == [CHOSEN, AGREES]


@pytest.mark.parametrize(
    ("changes", "made", "reason"),
    [
        ({"tables": {}}, {}, "t is not"),
        ({"absent": {"t": "no reason"}}, {}, "no reason"),
        ({"stand_ins": {"a": "b"}}, {"where": {"variant": "a"}}, "b stands in for a"),
        ({}, {"where": {"variant": "none"}}, "none"),
        ({}, {"where": {"role": "large"}}, "large"),
        ({"tables": {"t": [made_row(x=None, reason="broken")]}}, {}, "broken"),
        ({"tables": {"t": [made_row(x=None, status="oom")]}}, {}, "out of memory"),
        ({"tables": {"t": [made_row(x=1.0, row="published")]}}, {}, "no row"),
        ({"roles": {"small": MODEL, "large": MODEL}}, {"against": "large"}, "plays both"),
    ],
)
def test_what_is_not_measured_says_why(changes, made, reason):
    found = judge(made_claim(stated=[0, None], **made), made_scene([made_row(x=1.0)], **changes))
    assert (found.verdict, found.measured) == (UNMEASURED, None) and reason in found.reason


def test_a_cell_that_matches_several_rows_or_no_column_is_an_error():
    with pytest.raises(UserError, match="claim c: .*t.csv"):
        judge(made_claim(stated=[0, None]), made_scene([made_row(x=1.0), made_row(x=1.0)]))
    with pytest.raises(UserError, match="'y'"):
        judge(made_claim(where={"y": 1}, stated=[0, None]), made_scene([made_row(x=1.0)]))
