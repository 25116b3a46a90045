"""Refuse a request for prompt_logprobs when it arrives, where prompt tokens skip layers.

vLLM refuses most such requests in its server only, and lets `prompt_logprobs: 0` through to an assertion in the engine,
which ends it. The one place where a plugin sees a request before the engine does is `LogitsProcessor.validate_params`
of an installed `vllm.logits_processors` entry point. The processor itself changes nothing; it tells the model of the
prompts in the batch.
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
with contextlib.suppress(ImportError):  # the second model runner has an interface of its own, not in vLLM 0.26
    # pyrefly: ignore [missing-import]
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    interfaces.append(LogitsProcessorV2)

# Settings of this process's engines with fast prefill. A request does not say which engine it is for.
_fast: list[weakref.ref] = []


def refuse_prompt_logprobs(vllm_config: VllmConfig) -> None:
    """From now on, for as long as an engine has these settings."""
    _fast.append(weakref.ref(vllm_config))


class PromptLogprobsGuard(*interfaces):  # pyrefly: ignore [invalid-inheritance]
    """Looks at requests as they arrive, and at which of them are in the batch."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError, one sentence, which vLLM's server answers with status 400."""
        asked = sampling_params.prompt_logprobs, getattr(sampling_params, "prompt_logprob_token_ids", None)
        if any(value is not None for value in asked) and any(reference() is not None for reference in _fast):
            raise ValueError(
                "prompt_logprobs (also asked for by prompt_logprob_token_ids, and by echo with logprobs) need every prompt "
                "token at full depth; start vLLM with --additional-config '{\"swiftkv_full_depth\": true}' (offline: "
                "additional_config={'swiftkv_full_depth': True})"
            )

    def __init__(self, vllm_config: VllmConfig, *others: Any) -> None:
        """As vLLM's first runner makes it and, with other `others`, the second."""
        self.prompts = batch_prompts(vllm_config)

    def is_argmax_invariant(self) -> bool:
        """It changes no logits."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep the length of each prompt, where it is of tokens; the first runner calls this before each step."""
        process_dict_updates(
            self.prompts.lengths, batch_update, lambda sampling, prompt, answer: len(prompt) if prompt else None
        )

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """It changes no logits."""
        return False

    def apply(self, logits: torch.Tensor, *context: Any) -> torch.Tensor:
        """The logits as they are."""
        return logits
