"""Request rates: which a server sustains, and the search for the highest such rate (Fig. 4, B.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

TTFT_FACTOR = 5.0
ACHIEVED = 0.9
UNSUSTAINED_IN_A_ROW = 2
CRITERION = (
    f"a rate is sustained if no request fails, the median time to first token is at most {TTFT_FACTOR:g} times that of "
    f"the lowest rate, and requests finish at {ACHIEVED:.0%} or more of the asked rate, the last one's own time "
    "(the mean end-to-end time at the lowest rate) not counted"
)

# Why 5: with Poisson arrivals and nearly constant service times (M/D/1) the mean wait is load / (2 (1 - load)) service
# times, so a time to first token of five times the idle one stands for a load of about 90 %. Above 100 % it grows with
# the length of the measurement, past any factor.


def sustained(measured: dict[str, Any], lowest: dict[str, Any]) -> bool:
    """Whether a rate's measurement meets `CRITERION`; `lowest` is that of the lowest rate."""
    if measured["failed"] or not measured["completed"]:
        return False
    busy = max(measured["seconds"] - lowest["e2e_ms"]["mean"] / 1000, 1e-9)
    achieved = measured["completed"] / busy
    # No request waits less than none: the last arrival alone takes up requests / rate seconds.
    in_time = achieved >= ACHIEVED * measured["request_rate"]
    return in_time and measured["ttft_ms"]["median"] <= TTFT_FACTOR * lowest["ttft_ms"]["median"]


def search(rates: Sequence[float], measure: Callable[[float], dict[str, Any]], steps: int) -> dict[str, Any]:
    """Measure the given rates in ascending order, then narrow down where sustaining ends.

    Rates above two unsustained ones in a row are left out: a queue that only grows says nothing new and takes longest.

    Args:
        rates: requests a second, any order.
        measure: measures one rate; its result has completed, failed, seconds, ttft_ms, e2e_ms (mean, median, ...).
        steps: bisections between the highest sustained rate and the next unsustained one.

    Returns:
        rates (ascending, each with `sustained`), highest_sustained_rate (None if not even the lowest is),
        lowest_unsustained_rate (None if all are sustained), criterion.
    """
    done: list[dict[str, Any]] = []
    lowest: dict[str, Any] | None = None
    row = 0
    for rate in sorted(set(rates)):
        measured = measure(rate)
        lowest = lowest or measured
        done.append(measured | {"sustained": sustained(measured, lowest)})
        row = 0 if done[-1]["sustained"] else row + 1
        if row == UNSUSTAINED_IN_A_ROW:
            break
    low, high = boundary(done)
    for _ in range(steps):
        if low is None or high is None:
            break
        measured = measure((low + high) / 2)
        done.append(measured | {"sustained": sustained(measured, lowest)})
        low, high = boundary(done)
    done.sort(key=lambda entry: entry["request_rate"])
    return {
        "rates": done,
        "highest_sustained_rate": low,
        "lowest_unsustained_rate": high,
        "criterion": CRITERION,
    }


def boundary(measured: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
    """The highest rate up to which every measured rate is sustained, and the next one; None where there is none."""
    low = None
    for entry in sorted(measured, key=lambda entry: entry["request_rate"]):
        if not entry["sustained"]:
            return low, entry["request_rate"]
        low = entry["request_rate"]
    return low, None
