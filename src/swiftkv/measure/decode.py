"""Time per output token while only decoding, by batch size: no prompt is computed in the steps that count."""

from __future__ import annotations

import statistics
from typing import Any

from swiftkv.measure.kind import Kind, Numbers, Run, engine, engine_command, requested
from swiftkv.measure.point import Point

WHAT = "wall time of an engine step that decodes one token of every request of the batch, scheduling included"


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
    alone=True,
)
