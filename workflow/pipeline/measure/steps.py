"""Times of single engine steps: forward passes over batches of prompt tokens (Fig. 2, right), and decoding by batch size.

The paper says what the figure shows ("the time per forward pass", "across a range of batch sizes") but not what is in a
batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine, one
token out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from pipeline.config.points import Decode, ForwardTime
from pipeline.measure.kind import (
    BASELINE,
    OWN,
    Kind,
    Numbers,
    Run,
    engine_command,
    engines,
    in_turns,
    repeats,
    requested,
    samples,
)
from pipeline.measure.point import Point


def largest_batch(point: Point[ForwardTime]) -> tuple[int, int]:
    """The largest batch of a forward point, and the token sampled after it."""
    return max(point.settings.batch_tokens), 1


def forward_numbers(run: Run[ForwardTime], command: list[str]) -> Numbers:
    """Every batch on one engine, each time after one to warm up."""
    point, times, often = run.point.settings, {BASELINE: [], OWN: []}, repeats(run.point, run.subject.variant)
    job = {"do": "forward", "repeats": 1, "seed": run.point.seed}
    with engines(run, command) as sides:
        for tokens in point.batch_tokens:
            for side, answers in in_turns(sides, job | {"input": tokens}, often).items():
                times[side].append([answer["seconds"][0] for answer in answers])
    own = times[OWN]
    return {
        "batch_tokens": point.batch_tokens,
        "seconds": {"median": list(map(statistics.median, own)), "min": list(map(min, own))},
        **samples(times, "seconds"),
        "repeats": often,
        "what": "wall time of one engine step that computes a prompt of so many tokens in one forward pass and samples "
        "one token, scheduling included",
    }


def decode_numbers(run: Run[Decode], command: list[str]) -> Numbers:
    """Every batch size on one engine, each once to warm up; no prompt is computed in the steps that count."""
    point, times, steps = run.point.settings, {BASELINE: [], OWN: []}, []
    (prompt, output), often = requested(run.point), repeats(run.point, run.subject.variant)
    with engines(run, command) as sides:
        for batch in point.batch_sizes:
            job = {"do": "decode", "batch": batch, "input": prompt, "output": output, "seed": run.point.seed}
            for program in sides.values():
                program.ask(job)
            found = in_turns(sides, job, often)
            for side, answers in found.items():
                times[side].append([1000 * answer["seconds"] / answer["steps"] for answer in answers])
            steps.append([answer["steps"] for answer in found[OWN]])
    spread = {"median": statistics.median, "min": min, "max": max}
    return {
        "batch_sizes": point.batch_sizes,
        "tpot_ms": {name: list(map(of, times[OWN])) for name, of in spread.items()},
        **samples(times, "ms"),
        "steps": steps,
        "what": "wall time of an engine step that decodes one token of every request of the batch, scheduling included",
    }


def _kind(
    lengths: Callable[[Point], tuple[int, int]],
    settings: tuple[str, ...],
    numbers: Callable[[Run, list[str]], Numbers],
    headline: Callable[[Numbers], list[str]],
    single: bool = False,
) -> Kind:
    return Kind(
        lengths=lengths,
        settings=lambda point: {name: getattr(point.settings, name) for name in settings} | {"prompts": "token ids"},
        command=engine_command(lengths),
        numbers=numbers,
        headline=lambda result: ", ".join(headline(result)),
        alone=True,
        single=single,
    )


FORWARD = _kind(
    largest_batch,
    ("batch_tokens", "repeats"),
    forward_numbers,
    lambda result: [
        f"{tokens} tokens {1000 * seconds:.1f} ms"
        for tokens, seconds in zip(result["batch_tokens"], result["seconds"]["median"], strict=True)
    ],
    single=True,
)
DECODE = _kind(
    requested,
    ("input_tokens", "output_tokens", "batch_sizes", "repeats"),
    decode_numbers,
    lambda result: [
        f"batch {batch} {milliseconds:.2f} ms a token"
        for batch, milliseconds in zip(result["batch_sizes"], result["tpot_ms"]["median"], strict=True)
    ],
)
