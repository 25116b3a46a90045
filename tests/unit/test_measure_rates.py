"""The search for the highest sustained rate, on servers that are formulas."""

import pytest

from pipeline.measure.rates import boundary, search, sustained


def queue(capacity, service=0.1, window=300.0, asked=None):
    """Measures a server that finishes `capacity` requests a second and takes `service` seconds for one alone."""

    def measure(rate):
        if asked is not None:
            asked.append(rate)
        load = rate / capacity
        requests = round(rate * window)
        if load < 1:
            wait, seconds = service * load / (2 * (1 - load)), window + service
        else:
            seconds = requests / capacity + service
            wait = (seconds - window) / 2
        return {
            "request_rate": rate,
            "requests": requests,
            "completed": requests,
            "failed": 0,
            "seconds": seconds,
            "ttft_ms": {"median": 1000 * (service + wait)},
            "e2e_ms": {"mean": 1000 * (2 * service + wait)},
        }

    return measure


@pytest.mark.parametrize("capacity", [1.7, 3.0, 9.5])
def test_the_boundary_is_bracketed_below_the_capacity(capacity):
    result = search([0.5, 1, 2, 4, 8, 16], queue(capacity), steps=6)
    low, high = result["highest_sustained_rate"], result["lowest_unsustained_rate"]
    assert 0.8 * capacity < low < high < 1.05 * capacity
    assert high - low <= 8 / 2**6
    rates = [entry["request_rate"] for entry in result["rates"]]
    assert rates == sorted(rates)
    assert [entry["sustained"] for entry in result["rates"]] == [rate <= low for rate in rates]


def test_rates_far_above_the_boundary_are_left_out():
    asked = []
    search([16, 8, 4, 2, 1, 0.5], queue(1.5, asked=asked), steps=0)
    assert asked == [0.5, 1, 2, 4]  # ascending, and two unsustained ones are enough


def test_all_sustained_has_no_upper_end():
    result = search([1, 2], queue(100), steps=3)
    assert (result["highest_sustained_rate"], result["lowest_unsustained_rate"]) == (2, None)
    assert len(result["rates"]) == 2


def test_a_server_that_does_not_keep_up_at_all():
    result = search([4, 8], queue(1), steps=3)
    assert (result["highest_sustained_rate"], result["lowest_unsustained_rate"]) == (None, 4)


def test_a_failed_request_is_not_sustained():
    measure = queue(10)
    lowest = measure(1.0)
    assert sustained(measure(2.0), lowest)
    assert not sustained(measure(2.0) | {"failed": 1}, lowest)
    assert not sustained(measure(2.0) | {"completed": 0}, lowest)


def test_a_short_measurement_is_not_held_against_the_last_request():
    # 5 requests arrive within 5 s, the last one takes 1 s: 5 / 6 of the asked rate, and nothing waited.
    slow = {"request_rate": 1.0, "completed": 5, "failed": 0, "seconds": 6.0,
            "ttft_ms": {"median": 500.0}, "e2e_ms": {"mean": 1000.0}}  # fmt: skip
    assert sustained(slow, slow)
    assert not sustained(slow | {"seconds": 7.0}, slow)


def test_late_first_tokens_are_not_sustained():
    fast = {"request_rate": 1.0, "completed": 300, "failed": 0, "seconds": 300.0,
            "ttft_ms": {"median": 100.0}, "e2e_ms": {"mean": 200.0}}  # fmt: skip
    assert sustained(fast | {"ttft_ms": {"median": 500.0}}, fast)
    assert not sustained(fast | {"ttft_ms": {"median": 501.0}}, fast)


def test_an_unsustained_rate_ends_what_counts_as_sustained():
    entries = [{"request_rate": rate, "sustained": good} for rate, good in [(1, True), (4, True), (2, False)]]
    assert boundary(entries) == (1, 2)
