"""SwiftKV for Llama."""

from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaForCausalLM, LlamaModel, LlamaRMSNorm

from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


class LlamaSwiftKVConfig(SwiftKVConfigMixin, LlamaConfig):
    """`LlamaConfig` with the SwiftKV fields."""

    model_type = "llama_swiftkv"


class LlamaSwiftKVAttention(SwiftKVAttentionMixin, LlamaAttention):
    """Attention of a Llama layer >= l, as teacher or as student."""


class LlamaSwiftKVModel(SwiftKVModelMixin, LlamaModel):
    """Llama decoder with SwiftKV from layer l on."""

    config: LlamaSwiftKVConfig
    attention_class = LlamaSwiftKVAttention
    norm_class = LlamaRMSNorm


class LlamaSwiftKVForCausalLM(SwiftKVCausalLMMixin, LlamaForCausalLM):
    """Llama language model with SwiftKV from layer l on."""

    config: LlamaSwiftKVConfig
    model_class = LlamaSwiftKVModel
