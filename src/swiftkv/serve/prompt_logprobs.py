"""Refuse requests for prompt_logprobs when prompt tokens skip layers.

vLLM refuses most of them in its server only, and `prompt_logprobs: 0` ends the engine with an assertion. A plugin sees
requests before the engine in `LogitsProcessor.validate_params` of a `vllm.logits_processors` entry point. The processor
changes no logits; it also tells the model the prompt lengths in the batch.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from swiftkv.serve.batch_prompts import batch_prompts

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

# Settings of this process's engines with fast prefill; a request does not name its engine.
_fast: list[weakref.ref] = []


def refuse_prompt_logprobs(vllm_config: VllmConfig) -> None:
    """Refuse such requests while `vllm_config` exists."""
    _fast.append(weakref.ref(vllm_config))


class PromptLogprobsGuard(*interfaces):  # pyrefly: ignore [invalid-inheritance]
    """Checks requests as they arrive, and records the prompt lengths in the batch."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise a `ValueError` for prompt_logprobs; vLLM's server answers with status 400."""
        asked = sampling_params.prompt_logprobs, getattr(sampling_params, "prompt_logprob_token_ids", None)
        if any(value is not None for value in asked) and any(reference() is not None for reference in _fast):
            raise ValueError(
                "prompt_logprobs (also asked for by prompt_logprob_token_ids, and by echo with logprobs) need every prompt "
                "token at full depth; start vLLM with --additional-config '{\"swiftkv_full_depth\": true}' (offline: "
                "additional_config={'swiftkv_full_depth': True})"
            )

    def __init__(self, vllm_config: VllmConfig, *others: Any) -> None:
        """Called by vLLM's first and second runner with different `others`."""
        self.prompts = batch_prompts(vllm_config)

    def is_argmax_invariant(self) -> bool:
        """It changes no logits."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Record the lengths of token prompts; the first runner calls this before each step."""
        process_dict_updates(
            self.prompts.lengths, batch_update, lambda sampling, prompt, answer: len(prompt) if prompt else None
        )

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """It changes no logits."""
        return False

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """Return the logits unchanged."""
        return logits
