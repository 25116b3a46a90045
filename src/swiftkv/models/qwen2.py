"""SwiftKV for Qwen2."""

from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2ForCausalLM, Qwen2Model, Qwen2RMSNorm

from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


class Qwen2SwiftKVConfig(SwiftKVConfigMixin, Qwen2Config):
    """`Qwen2Config` with the SwiftKV fields."""

    model_type = "qwen2_swiftkv"


class Qwen2SwiftKVAttention(SwiftKVAttentionMixin, Qwen2Attention):
    """Attention of a Qwen2 layer >= l, as teacher or as student."""


class Qwen2SwiftKVModel(SwiftKVModelMixin, Qwen2Model):
    """Qwen2 decoder with SwiftKV from layer l on."""

    config: Qwen2SwiftKVConfig
    attention_class = Qwen2SwiftKVAttention
    norm_class = Qwen2RMSNorm


class Qwen2SwiftKVForCausalLM(SwiftKVCausalLMMixin, Qwen2ForCausalLM):
    """Qwen2 language model with SwiftKV from layer l on."""

    config: Qwen2SwiftKVConfig
    model_class = Qwen2SwiftKVModel
