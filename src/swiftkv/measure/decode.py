"""Time per output token while only decoding, by batch size: no prompt is computed in the steps that count."""

from __future__ import annotations

import math
import statistics
from typing import Any

from swiftkv.errors import UserError
from swiftkv.measure.kind import Kind, Numbers, Run, engine, engine_command, requested
from swiftkv.measure.point import Point

WHAT = "wall time of an engine step that decodes one token of every request of the batch, scheduling included"


def check(point: Point) -> None:
    """Refuse a batch that never decodes as a whole."""
    batch, chunk = max(point["batch_sizes"]), point.engine["max_num_batched_tokens"]
    if batch > point.engine["max_num_seqs"]:
        raise UserError(
            f"point {point.name!r}: a batch of {batch} requests does not fit into one step of "
            f"{point.engine['max_num_seqs']} (serving.engine.max_num_seqs)"
        )
    steps = math.ceil(batch * (point["input_tokens"] + 1) / chunk)
    if point["output_tokens"] <= steps + 1:
        raise UserError(
            f"point {point.name!r}: the first of {batch} requests ends before the last has begun, about {steps} steps later; "
            f"outputs of {point['output_tokens']} tokens are too short (output_tokens)"
        )


def settings(point: Point) -> dict[str, Any]:
    """What was asked for."""
    names = ("input_tokens", "output_tokens", "batch_sizes", "repeats")
    return {name: point[name] for name in names} | {"prompts": "token ids"}


def numbers(run: Run, command: list[str]) -> Numbers:
    """Every batch size on one engine, each once to warm up."""
    prompt, output = requested(run.point)
    samples, steps = [], []
    with engine(run, command) as program:
        for batch in run.point["batch_sizes"]:
            job = {"do": "decode", "batch": batch, "input": prompt, "output": output, "seed": run.point["seed"]}
            program.ask(job)
            answers = [program.ask(job) for _ in range(run.point["repeats"])]
            samples.append([1000 * answer["seconds"] / answer["steps"] for answer in answers])
            steps.append([answer["steps"] for answer in answers])
    return {
        "batch_sizes": run.point["batch_sizes"],
        "tpot_ms": {
            "median": [statistics.median(each) for each in samples],
            "min": [min(each) for each in samples],
            "max": [max(each) for each in samples],
        },
        "samples_ms": samples,
        "steps": steps,
        "what": WHAT,
    }


def headline(result: Numbers) -> str:
    """The medians."""
    pairs = zip(result["batch_sizes"], result["tpot_ms"]["median"], strict=True)
    return ", ".join(f"batch {batch} {milliseconds:.2f} ms a token" for batch, milliseconds in pairs)


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=engine_command(requested),
    numbers=numbers,
    headline=headline,
    check=check,
    alone=True,
)
