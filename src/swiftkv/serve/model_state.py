"""Detects V2 steps that sample no token, so that the upper half can be skipped."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState


class SwiftKVModelState(DefaultModelState):
    """Skips the upper half if every request is a prompt that later steps finish.

    vLLM counts a row with logits for each of those too, and discards the sampled token.
    """

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """Forget the graphs that vLLM captured to measure their memory, before it made these caches, and has deleted.

        vLLM calls it when caches are made; its own does nothing, and releases before 0.30 have none.
        """
        decoder: Any = self.model.model
        decoder.graphs.captured.clear()

    def prepare_attn(self, input_batch: InputBatch, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Return the attention metadata by layer, without rows for layers >= l if the step samples no token."""
        metadata = super().prepare_attn(input_batch, *arguments, **named)
        decoder: Any = self.model.model
        step: Any = metadata.get(decoder.last_attention)
        # The bound is exact for prompts, and a step with fast prefill has one.
        ends = input_batch.seq_lens_cpu_upper_bound[: input_batch.num_reqs].numpy() >= input_batch.prefill_len_np
        decoder.prompts.unfinished = (~ends).nonzero()[0].tolist()
        if getattr(step, "num_logits_indices", None) is not None and not ends.any():
            step.num_logits_indices = 0
        return metadata
