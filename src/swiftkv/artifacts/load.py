"""What was asked of an engine, in one line: output length, requests, seconds and repeats, for every serving artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swiftkv.artifacts.text import enumeration


def load_line(points: Sequence[Mapping[str, Any]], prompts: Sequence[int] = ()) -> str:
    """The load of an artifact's points, in the words of their settings; empty where these say nothing.

    Args:
        points: their settings, in order; what differs between them is listed in that order.
        prompts: requests that are sent at once, one number a point.
    """

    def listed(name: str) -> str:
        values = [f"{point[name]:,g}" for point in points if point.get(name)]
        return enumeration(values[:1] if len(set(values)) == 1 else values) if values else ""

    parts = []
    if outputs := listed("output_tokens"):
        parts.append(f"{outputs} output tokens a request")
    if prompts:
        counts = [f"{count:,}" for count in (prompts[:1] if len(set(prompts)) == 1 else prompts)]
        parts.append(f"{enumeration(counts)} request{'' if set(prompts) == {1} else 's'} at once")
    if seconds := listed("seconds"):
        least = listed("min_requests")
        parts.append(f"arrivals for {seconds} s a rate" + (f", at least {least} requests" if least else ""))
    if each := listed("requests_each"):
        parts.append(f"{each} requests in each place, one after the other")
    if (repeats := listed("repeats")) not in ("", "1"):
        parts.append(f"measured {repeats} times")
    return "; ".join(parts)
