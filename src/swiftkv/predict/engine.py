"""An engine with chunked prefill, step by step, as vLLM schedules it: decoding first, then prompts in their order."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swiftkv.predict.step import Served, Step


@dataclass(frozen=True)
class Limits:
    """What an engine may do at once.

    Attributes:
        tokens: of a step (max_num_batched_tokens).
        sequences: that run (max_num_seqs).
        cache: tokens that the KV cache holds; None is no limit.
    """

    tokens: int
    sequences: int
    cache: float | None = None


@dataclass(frozen=True)
class Timing:
    """When requests arrived, had their first token and their last, in seconds; in the order of arrival."""

    arrived: tuple[float, ...]
    first: tuple[float, ...]
    last: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Until the last request ended."""
        return max(self.last)


def run(served: Served, limits: Limits, prompt: int, output: int, arrivals: Sequence[float]) -> Timing | None:
    """Serve requests of equal length.

    A request is begun when the cache has room for all of it, so none is ever stopped. Nothing is cached between requests.

    Args:
        prompt, output: tokens of each request, at least one of both.
        arrivals: seconds, ascending.

    Returns:
        When each began and ended; None where the cache does not hold one request.
    """
    whole = prompt + output
    if limits.cache is not None and limits.cache < whole:
        return None
    most = limits.sequences if limits.cache is None else min(limits.sequences, int(limits.cache // whole))
    now, number, context = 0.0, 0, 0  # seconds, step, tokens that all decoding requests see
    waiting, begun, decoding = 0, deque[int](), deque[int]()  # next to begin; tokens done of prompts; last steps
    first: list[float] = []
    last: list[float] = []
    while len(last) < len(arrivals):
        if not begun and not decoding and arrivals[waiting] > now:
            now = arrivals[waiting]
        room, touched, tokens, pairs, seen, reading = limits.tokens - len(decoding), 0, 0, 0, 0, context
        while room > 0:
            if touched == len(begun):
                free = len(begun) + len(decoding) < most
                if not free or waiting == len(arrivals) or arrivals[waiting] > now:
                    break
                begun.append(0)
                waiting += 1
            done = begun[touched]
            part = min(prompt - done, room)
            room, tokens, pairs = room - part, tokens + part, pairs + part * done + part * (part + 1) // 2
            begun[touched] = done + part
            seen, touched = seen + done + part, touched + 1
        now += served.seconds(Step(tokens, pairs, touched, seen, len(decoding), reading))
        number += 1
        context += len(decoding)
        while decoding and decoding[0] == number:
            decoding.popleft()
            last.append(now)
            context -= whole
        while begun and begun[0] == prompt:
            begun.popleft()
            first.append(now)
            if output == 1:
                last.append(now)
            else:
                decoding.append(number + output - 1)
                context += prompt + 1
    return Timing(tuple(arrivals), tuple(first), tuple(last))


def all_at_once(served: Served, limits: Limits, prompt: int, output: int, count: int) -> float | None:
    """Seconds of so many requests that are all sent at once; None where the cache does not hold one."""
    timing = run(served, limits, prompt, output, [0.0] * count)
    return timing and timing.seconds


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Arrivals of `count` requests, the same for the same seed; scaled to take `count / rate` seconds, as vLLM's client does."""
    generator = random.Random(seed)
    waits = list(itertools.accumulate(generator.expovariate(rate) for _ in range(count)))
    return [wait * count / rate / waits[-1] for wait in waits]


def decode_step(served: Served, batch: int, context: float) -> float:
    """Seconds of a step in which `batch` requests of so many tokens decode."""
    return served.seconds(Step(decoding=batch, context=round(batch * context)))


def roofline_speedup(
    served: Served, limits: Limits, prompt: int, output: int, count: int, baseline: Limits | None = None
) -> float:
    """How much faster than the unchanged model a variant is where both reach the peaks of their devices.

    FLOPs and bytes count, step by step: the upper half reads its weights for however few rows. A full KV cache does not, as
    in the limit by FLOPs.

    Args:
        served: the variant.
        count: requests that are all sent at once.
        baseline: the unchanged model's limits, where they are others.
    """
    rewired = replace(served, device=served.device.peak)
    plain = replace(rewired, spec=None, fp8_cache=False)
    both = ((plain, baseline or limits), (rewired, limits))
    times = [run(one, replace(own, cache=None), prompt, output, [0.0] * count) for one, own in both]
    unchanged, faster = (time.seconds for time in times if time)
    return unchanged / faster
