"""Verdicts on claims stay within their error bars, and on other models and hardware they say only the direction."""

import pytest

from swiftkv.artifacts.verdicts import DIRECTION, FAILS, FAILS_HERE, HOLDS, UNDECIDED, UNMEASURED, Scene, judge
from swiftkv.errors import UserError
from tests.unit.claim_helpers import made_claim, made_row

MODEL = {"name": "mine", "title": "My model", "published": "theirs"}
OTHER = {"name": "small", "title": "Small model", "published": "small"}


def scene(rows, **changes) -> Scene:
    named = {
        "tables": {"t": rows},
        "roles": {"small": MODEL, "large": None},
        "models": {"small": "theirs", "large": "big"},
    }
    return Scene(**{**named, "benchmarks": 7, **changes})


def verdict(rows, made, **changes):
    return judge(made, scene(rows, **changes)).verdict


def gap(**keys):
    first, second = (
        {"artifact": "t", "column": "x", "where": {"role": "small", "variant": name}} for name in ("a", "b")
    )
    return {"id": "c", "text": "x", "place": "paper", "difference": [first, second], **keys}


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [
        (1.5, 0.1, HOLDS),  # 1.3 to 1.7
        (1.5, None, HOLDS),
        (1.1, 0.1, DIRECTION),  # reaches below 1, but stays above 0.5
        (0.7, 0.05, DIRECTION),  # surely below 1, surely above 0.5
        (0.6, 0.1, UNDECIDED),  # reaches below 0.5 as well
        (1.5, 0.6, UNDECIDED),
        (0.2, 0.1, FAILS),
        (0.2, None, FAILS),
        (0.2, 0.2, UNDECIDED),
    ],
)
def test_verdict_on_the_papers_model(value, stderr, expected):
    assert verdict([made_row(x=value, x_stderr=stderr)], made_claim(holds=[1, None], direction=[0.5, None])) == expected


@pytest.mark.parametrize(
    ("value", "stderr", "expected"),
    [
        (1.5, 0.1, DIRECTION),
        (0.7, 0.05, DIRECTION),
        (0.6, 0.1, UNDECIDED),
        (0.2, 0.1, FAILS_HERE),
        (0.2, None, FAILS_HERE),
    ],
)
def test_another_model_decides_only_the_direction(value, stderr, expected):
    rows = [{"model": "small", "variant": "swiftkv-50", "x": value, "x_stderr": stderr}]
    found = judge(made_claim(holds=[1, None], direction=[0.5, None]), scene(rows, roles={"small": OTHER}))
    assert found.verdict == expected
    assert "Small model in place of theirs" in found.reason and found.measured.models == ("Small model",)


def test_without_a_weaker_form_another_model_decides_nothing():
    rows = [{"model": "small", "variant": "swiftkv-50", "x": 5.0}]
    found = judge(made_claim(holds=[1, None]), scene(rows, roles={"small": OTHER}))
    assert found.verdict == UNMEASURED and found.measured.value == 5 and found.reason.startswith("needs theirs")
    assert verdict([made_row(x=0.2)], made_claim(holds=[1, None])) == FAILS
    assert verdict([made_row(x=1.1, x_stderr=0.1)], made_claim(holds=[1, None])) == UNDECIDED


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"conditions": "4 × NVIDIA H100 80GB HBM3, vLLM 1"}, HOLDS),
        ({"conditions": "8 × NVIDIA H100 80GB HBM3, vLLM 1"}, DIRECTION),
        ({"conditions": "4 × NVIDIA A100, vLLM 1"}, DIRECTION),
        ({"conditions": "AMD EPYC, 2 cores"}, DIRECTION),
        ({"device": "NVIDIA H100 80GB HBM3", "gpus": 4.0}, HOLDS),
        ({"device": "AMD EPYC, 2 cores", "gpus": 0.0}, DIRECTION),
        ({}, DIRECTION),
    ],
)
def test_speed_holds_only_on_the_papers_hardware(conditions, expected):
    made = made_claim(holds=[1, None], direction=[1, None], hardware="4 x H100")
    assert verdict([made_row(x=2.0, **conditions)], made) == expected


def test_no_error_known_is_said():
    assert judge(made_claim(holds=[1, None]), scene([made_row(x=2.0)])).reason == "no error known"
    assert judge(made_claim(holds=[1, None]), scene([made_row(x=2.0, x_stderr=0.1)])).reason == ""


def test_errors_of_a_difference_add_in_quadrature():
    rows = [made_row("a", x=10.0, x_stderr=3.0), made_row("b", x=4.0, x_stderr=4.0)]
    measured = judge(gap(holds=[0, None]), scene(rows)).measured
    assert (measured.value, measured.stderr) == (6.0, 5.0)
    assert verdict(rows, gap(holds=[0, None])) == UNDECIDED  # 6 - 2 * 5 < 0
    assert judge(gap(holds=[0, None]), scene([rows[0], made_row("b", x=4.0)])).measured.stderr is None


def test_errors_of_a_ratio_are_of_first_order():
    rows = [made_row("a", x=6.0, x_stderr=0.6), made_row("b", x=2.0, x_stderr=0.1)]
    made = gap(holds=[1, None])
    made["ratio"] = made.pop("difference")
    measured = judge(made, scene(rows)).measured
    assert measured.value == pytest.approx(3.0)
    assert measured.stderr == pytest.approx(3.0 * (0.1**2 + 0.05**2) ** 0.5)


def test_largest_smallest_and_rises():
    rows = [made_row(x=value, n=float(n)) for n, value in enumerate([1.0, 3.0, 2.75, 2.5])]

    def value(how):
        return judge(made_claim(how, holds=[0, None]), scene(rows)).measured.value

    assert (value("largest"), value("smallest")) == (3.0, 1.0)
    rising = made_claim("rises", holds=[0, None], direction=[-0.6, None])
    rising["rises"]["along"] = "n"
    assert judge(rising, scene(rows[::-1])).measured.value == -0.5  # of both falls together, in any order of rows
    assert verdict(rows, rising) == DIRECTION and verdict(rows[:2], rising) == HOLDS
    assert verdict(rows[:1], rising) == UNMEASURED
    with pytest.raises(UserError, match="same n"):
        judge(rising, scene([rows[0], rows[0]]))


def test_empty_cells_of_many_are_counted():
    found = judge(made_claim("smallest", holds=[0, None]), scene([made_row(x=1.0), made_row(x=None)]))
    assert found.verdict == HOLDS and "1 of 2 cells are empty" in found.reason


def test_selectors():
    rows = [
        made_row(x=float(rate), rate=rate, point=point)
        for point, rates in (("p", (1, 2, 4)), ("q", (3, 5)))
        for rate in rates
    ]
    rows.append(made_row("baseline", x=9.0, rate=1, point="p"))

    def chosen(how="largest", **where):
        return judge(made_claim(how, where, holds=[0, None]), scene(rows)).measured.value

    assert chosen(variant="swiftkv-50", rate="lowest", how="cell") == 1
    assert chosen(variant={"not": "baseline"}, rate="highest") == 5
    assert chosen(variant={"not": "baseline"}, rate={"is": "lowest", "per": "point"}) == 3
    assert chosen(variant={"not": "baseline"}, rate={"not": "lowest", "per": "point"}, how="smallest") == 2
    assert chosen(variant="baseline", rate=1) == 9


def test_a_number_takes_the_nearest_and_says_so_where_it_is_another():
    rows = [made_row(x=1.5, n=512.0), made_row(x=2.0, n=6000.0)]
    found = judge(made_claim(where={"n": 128000}, holds=[1.9, 2.1], direction=[1, None]), scene(rows))
    assert (found.verdict, found.measured.value) == (DIRECTION, 2.0) and "n 6,000 in place of 128,000" in found.reason
    assert verdict(rows, made_claim(where={"n": 6144}, holds=[1.9, 2.1])) == HOLDS  # 2 % away


def test_an_average_over_fewer_benchmarks_is_another():
    rows = [made_row(average=50.0, average_tasks="a b c d e f")]
    made = made_claim(holds=[40, None], direction=[40, None])
    made["cell"]["column"] = "average"
    assert verdict(rows, made) == DIRECTION
    assert verdict([made_row(average=50.0, average_tasks="a b c d e f g")], made) == HOLDS


def test_words_are_compared():
    assert verdict([made_row(x="oom")], made_claim(holds="oom")) == HOLDS
    assert verdict([made_row(x="ok")], made_claim(holds="oom")) == FAILS
    small = [{"model": "small", "x": "oom"}]
    assert verdict(small, made_claim(holds="oom"), roles={"small": OTHER}) == DIRECTION


@pytest.mark.parametrize(
    ("changes", "made", "reason"),
    [
        ({"tables": {}}, {}, "t is not among this scale's artifacts"),
        ({"absent": {"t": "no reason"}}, {}, "t is not made: no reason"),
        ({"stand_ins": {"a": "b"}}, {"where": {"variant": "a"}}, "b stands in for a"),
        ({}, {"where": {"variant": "none"}}, "t has no row of My model with variant none"),
        ({}, {"where": {"role": "large"}}, "no model of this scale plays the role large"),
        ({"tables": {"t": [made_row(x=None, reason="broken")]}}, {}, "no x, broken"),
        ({"tables": {"t": [made_row(x=None, status="oom")]}}, {}, "no x, out of memory"),
        ({"roles": {"small": MODEL, "large": MODEL}}, {"against": "large"}, "plays both"),
    ],
)
def test_what_is_not_measured_says_why(changes, made, reason):
    found = judge(made_claim(holds=[0, None], **made), scene([made_row(x=1.0)], **changes))
    assert (found.verdict, found.measured) == (UNMEASURED, None) and reason in found.reason


def test_a_cell_that_matches_several_rows_is_an_error():
    with pytest.raises(UserError, match="claim c: its cell matches 2 rows of t.csv"):
        judge(made_claim(holds=[0, None]), scene([made_row(x=1.0), made_row(x=1.0)]))
    with pytest.raises(UserError, match="t.csv has no column 'y'"):
        judge(made_claim(where={"y": 1}, holds=[0, None]), scene([made_row(x=1.0)]))


def test_rows_of_published_statements_are_not_measurements():
    rows = [made_row(x=1.0, row="measured"), made_row(x=2.0, row="published")]
    assert judge(made_claim(holds=[0, None]), scene(rows)).measured.value == 1.0


@pytest.mark.parametrize(("value", "stderr", "said"), [(1.9, None, True), (1.7, 0.1, True), (1.7, 0.04, False)])
def test_a_speedup_that_reaches_above_its_limit_is_said_to(value, stderr, said):
    row = made_row(speedup=value, speedup_stderr=stderr, speedup_limit=1.8)
    for how in ("cell", "largest"):
        cell = {"artifact": "t", "column": "speedup", "where": {"role": "small"}}
        found = judge({"id": "c", "text": "x", "place": "paper", how: cell, "holds": [1, None]}, scene([row]))
        assert found.verdict == HOLDS and ("above the 1.80× that the FLOP count allows" in found.reason) == said
