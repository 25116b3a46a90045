"""What vLLM's second model runner (V2) tells the model of a step: whether any of its rows is sampled from."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState


class SwiftKVModelState(DefaultModelState):
    """Leaves out the upper half where every request is a prompt that later steps finish.

    vLLM counts a row with logits for each of those too, and throws away what it samples there.
    """

    def prepare_attn(self, input_batch: InputBatch, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Attention metadata by layer; of a step without a row to sample from, with no row for the layers >= l."""
        metadata = super().prepare_attn(input_batch, *arguments, **named)
        decoder: Any = self.model.model
        step: Any = metadata.get(decoder.last_attention)
        # The bound is exact for prompts, of which there is one where fast prefill is armed.
        ends = input_batch.seq_lens_cpu_upper_bound[: input_batch.num_reqs].numpy() >= input_batch.prefill_len_np
        decoder.prompts.unfinished = (~ends).nonzero()[0].tolist()
        if getattr(step, "num_logits_indices", None) is not None and not ends.any():
            step.num_logits_indices = 0
        return metadata
