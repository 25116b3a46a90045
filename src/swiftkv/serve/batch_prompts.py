"""Detects V1 steps that sample no token, so that the upper half can be skipped.

Logits processors know the prompts of the batch (`prompt_logprobs.py`), builders of attention metadata the length of each
request after the step (`attention.ReaderAttention`). If all requests are then shorter than their prompts, nothing is sampled.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig


class BatchPrompts:
    """The prompts of one engine's batch.

    Attributes:
        lengths: prompt tokens by the request's index in the batch, if known.
        unfinished: indices of prompts that continue after the last noted step.
        starts: first row with logits of each request in that step, and their number, [requests + 1], on the device.
    """

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.unfinished: list[int] = []
        self.starts: torch.Tensor | None = None
        self._sampled = True

    def note(self, after_step: torch.Tensor | None, starts: torch.Tensor) -> None:
        """Note a step: upper bounds of each request's tokens after it, [requests], and `starts`."""
        lengths = [] if after_step is None else after_step.tolist()
        self.unfinished = [place for place, length in enumerate(lengths) if length < self.lengths.get(place, 0)]
        self.starts = starts
        self._sampled = not lengths or len(self.unfinished) < len(lengths)

    def sampled(self) -> bool:
        """Whether the noted step samples a token; True if no step was noted."""
        noted, self._sampled = self._sampled, True
        return noted


_engines: list[tuple[weakref.ref, BatchPrompts]] = []


def batch_prompts(vllm_config: VllmConfig) -> BatchPrompts:
    """Return the `BatchPrompts` of the engine with these settings, one per engine in this process."""
    for settings, prompts in _engines:
        if settings() is vllm_config:
            return prompts
    _engines[:] = [engine for engine in _engines if engine[0]() is not None]
    _engines.append((weakref.ref(vllm_config), BatchPrompts()))
    return _engines[-1][1]
