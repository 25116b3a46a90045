"""DeepSeek-V2 with SwiftKV: an architecture that vLLM has to know, so that it can be refused with the reason."""

from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM


class DeepseekV2SwiftKVForCausalLM(DeepseekV2ForCausalLM):
    """Never made: `SwiftKVSettings` refuses it before weights are read."""
