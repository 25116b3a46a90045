"""How many passes of the teacher the sums of all l take."""

from __future__ import annotations

from collections.abc import Sequence

HELD = 32e9  # bytes of sums at once: beside 16-bit weights of 8B in a GPU of 80 GB


def rounds(layers: Sequence[int], depth: int, width: int) -> list[list[int]]:
    """The l in groups, one for each pass of the teacher: sums of one group take at most `HELD` bytes, or it is one l."""
    turns: list[list[int]] = []
    held = 0
    for layer in sorted(set(layers)):
        size = 8 * (depth - layer) * width**2
        if not turns or held + size > HELD:
            turns.append([])
            held = 0
        turns[-1].append(layer)
        held += size
    return turns
