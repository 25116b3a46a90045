"""Time of one forward pass over batches of prompt tokens (Fig. 2, right).

The paper says what the figure shows ("the time per forward pass", "across a range of batch sizes") but not what is in a
batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine, one
token out.
"""

from __future__ import annotations

import statistics
from typing import Any

from swiftkv.measure.kind import Kind, Numbers, Run, engine, engine_command
from swiftkv.measure.point import Point

WHAT = (
    "wall time of one engine step that computes a prompt of so many tokens in one forward pass and samples one token, "
    "scheduling included"
)


def lengths(point: Point) -> tuple[int, int]:
    """The largest batch, and the token sampled after it."""
    return max(point["batch_tokens"]), 1


def settings(point: Point) -> dict[str, Any]:
    """What was asked for."""
    return {"batch_tokens": point["batch_tokens"], "repeats": point["repeats"], "prompts": "token ids"}


def numbers(run: Run, command: list[str]) -> Numbers:
    """Every batch on one engine."""
    job = {"do": "forward", "repeats": run.point["repeats"], "seed": run.point["seed"]}
    with engine(run, command, single=True) as program:
        times = [program.ask(job | {"input": tokens})["seconds"] for tokens in run.point["batch_tokens"]]
    return {
        "batch_tokens": run.point["batch_tokens"],
        "seconds": {"median": [statistics.median(each) for each in times], "min": [min(each) for each in times]},
        "repeats": run.point["repeats"],
        "what": WHAT,
    }


def headline(result: Numbers) -> str:
    """The medians."""
    pairs = zip(result["batch_tokens"], result["seconds"]["median"], strict=True)
    return ", ".join(f"{tokens} tokens {1000 * seconds:.1f} ms" for tokens, seconds in pairs)


KIND = Kind(
    lengths=lengths,
    settings=settings,
    command=engine_command(lengths),
    numbers=numbers,
    headline=headline,
    alone=True,
)
