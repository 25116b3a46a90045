"""The plugin's logits processor: refuses prompt_logprobs with fast prefill, and detects V1 steps that sample no token.

vLLM refuses most such requests in its server only, and `prompt_logprobs: 0` ends the engine with an assertion. A plugin sees
requests before the engine in `LogitsProcessor.validate_params` of a `vllm.logits_processors` entry point.

Logits processors also know the prompts of the batch, and builders of attention metadata the length of each request after the
step (`attention.ReaderAttention`). If all requests are then shorter than their prompts, the upper half can be skipped.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

interfaces: list[type] = [LogitsProcessor]
with contextlib.suppress(ImportError):  # the second model runner's interface is not in vLLM 0.26
    # pyrefly: ignore [missing-import]
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    interfaces.append(LogitsProcessorV2)


class BatchPrompts:
    """The prompts of one engine's batch, which exist in each of its processes.

    Attributes:
        lengths: prompt tokens by the request's index in the batch, if known.
        unfinished: indices of prompts that continue after the last noted step.
        refused: whether requests for prompt_logprobs are refused.
        starts: first row with logits of each request in that step, and their number, [requests + 1], on the device.
    """

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.unfinished: list[int] = []
        self.starts: torch.Tensor | None = None
        self.refused = False
        self._sampled = True

    def note(self, after_step: torch.Tensor | None, starts: torch.Tensor) -> None:
        """Note a step: upper bounds of each request's tokens after it, [requests], and `starts`."""
        lengths = [] if after_step is None else after_step.tolist()
        self.unfinished = [place for place, length in enumerate(lengths) if length < self.lengths.get(place, 0)]
        self.starts = starts
        self._sampled = not lengths or len(self.unfinished) < len(lengths)

    def sampled(self) -> bool:
        """Return True if the noted step samples a token, or no step was noted."""
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


class PromptLogprobsGuard(*interfaces):  # pyrefly: ignore [invalid-inheritance]
    """Checks requests as they arrive, and records the prompt lengths in the batch."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise a `ValueError` for prompt_logprobs; vLLM's server answers with status 400."""
        asked = sampling_params.prompt_logprobs, getattr(sampling_params, "prompt_logprob_token_ids", None)
        # A request does not name its engine.
        refused = any(prompts.refused for settings, prompts in _engines if settings() is not None)
        if refused and any(value is not None for value in asked):
            raise ValueError(
                "prompt_logprobs (also asked for by prompt_logprob_token_ids, and by echo with logprobs) need every prompt "
                "token at full depth; start vLLM with --additional-config '{\"swiftkv_full_depth\": true}' (offline: "
                "additional_config={'swiftkv_full_depth': True})"
            )

    def __init__(self, vllm_config: VllmConfig, *others: Any) -> None:
        """Called by vLLM's first and second runner with different `others`."""
        self.prompts = batch_prompts(vllm_config)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Record the lengths of token prompts; the first runner calls this before each step."""
        process_dict_updates(
            self.prompts.lengths, batch_update, lambda sampling, prompt, answer: len(prompt) if prompt else None
        )

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return False

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        return logits
