"""One question as a user asks it: the answer, and the seconds until its first token and its last. Not in the paper."""

from __future__ import annotations

import statistics
from typing import Any

from pipeline.config.points import Answer
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
from pipeline.measure.prompts import chat_openings
from swiftkv.errors import UserError


def settings(point: Point[Answer]) -> dict[str, Any]:
    """What was asked for."""
    names = ("input_tokens", "output_tokens", "dataset", "repeats")
    return {name: getattr(point.settings, name) for name in names} | {"prompts": "the longest opening of a chat"}


def numbers(run: Run[Answer], command: list[str]) -> Numbers:
    """The question, the answers by side, and the times; greedy, so every turn gives the same answer."""
    from transformers import AutoTokenizer

    point = run.point
    if run.heldout is None:
        raise UserError(f"point {point.name!r} sends a chat, but no file with chats was given")
    longest, output = requested(point)
    chats = chat_openings(run.subject.folder, run.heldout, longest, point.seed)
    question, prompt = max(chats, key=lambda chat: len(chat[1]))
    tokenizer = AutoTokenizer.from_pretrained(run.subject.folder)

    def text(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    job = {"do": "reply", "prompt": prompt, "output": output, "stop": [tokenizer.eos_token_id]}
    with engines(run, command) as sides:
        found = in_turns(sides, job, repeats(point, run.subject.variant), warm_up=job)
    first = {side: [1000 * answer["first_token_seconds"] for answer in answers] for side, answers in found.items()}
    whole = {side: [answer["seconds"] for answer in answers] for side, answers in found.items()}
    said = {side: answers[-1]["tokens"] for side, answers in found.items()}
    return {
        "question": question,
        "prompt_tokens": len(prompt),
        "text": text(said[OWN]),
        "baseline_text": text(said[BASELINE]) if BASELINE in said else None,
        "tokens": len(said[OWN]),
        "baseline_tokens": len(said[BASELINE]) if BASELINE in said else None,
        "first_token_ms": statistics.median(first[OWN]),
        "seconds": statistics.median(whole[OWN]),
        **samples(first, "ms"),
        **samples(whole, "seconds"),
        "what": "wall time from the request to the first token of the answer (ms), and to its last (seconds)",
    }


KIND = Kind(
    lengths=requested,
    settings=settings,
    command=engine_command(requested),
    numbers=numbers,
    headline=lambda result: (
        f"first token after {result['first_token_ms']:.0f} ms, {result['tokens']} tokens after "
        f"{result['seconds']:.2f} s"
    ),
    alone=True,
)
