"""In which steps of vLLM's first model runner (V1) no row is sampled from.

V1 has no place that says so. But its logits processors learn of the prompts of the batch (`prompt_logprobs.py`), and its
attention metadata are built from how long each request is after the step (`attention.ReaderAttention`). A step after
which all requests are shorter than their prompts is sampled from nowhere.
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
        lengths: tokens of a prompt by its request's place in the batch, where they are known.
        unfinished: places of prompts that go on after the step that was noted last.
        starts: where each place's rows with logits begin in that step, and their number, [requests + 1]; on the device.
    """

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.unfinished: list[int] = []
        self.starts: torch.Tensor | None = None
        self._sampled = True

    def note(self, after_step: torch.Tensor | None, starts: torch.Tensor) -> None:
        """Take what attention metadata are built from: tokens of each request after the step, or more, [requests]; `starts`."""
        lengths = [] if after_step is None else after_step.tolist()
        self.unfinished = [place for place, length in enumerate(lengths) if length < self.lengths.get(place, 0)]
        self.starts = starts
        self._sampled = not lengths or len(self.unfinished) < len(lengths)

    def sampled(self) -> bool:
        """Whether any row of the step that was noted is sampled from; a step that was not noted may be."""
        noted, self._sampled = self._sampled, True
        return noted


_engines: list[tuple[weakref.ref, BatchPrompts]] = []


def batch_prompts(vllm_config: VllmConfig) -> BatchPrompts:
    """Those of the engine with these settings, for all that asks in this process."""
    for settings, prompts in _engines:
        if settings() is vllm_config:
            return prompts
    _engines[:] = [engine for engine in _engines if engine[0]() is not None]
    _engines.append((weakref.ref(vllm_config), BatchPrompts()))
    return _engines[-1][1]
