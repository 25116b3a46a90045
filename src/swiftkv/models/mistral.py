"""SwiftKV for Mistral."""

from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.mistral.modeling_mistral import (
    MistralAttention,
    MistralForCausalLM,
    MistralModel,
    MistralRMSNorm,
)

from swiftkv.models.attention import SwiftKVAttentionMixin
from swiftkv.models.configuration import SwiftKVConfigMixin
from swiftkv.models.swiftkv import SwiftKVCausalLMMixin, SwiftKVModelMixin


class MistralSwiftKVConfig(SwiftKVConfigMixin, MistralConfig):
    """`MistralConfig` with the SwiftKV fields."""

    model_type = "mistral_swiftkv"


class MistralSwiftKVAttention(SwiftKVAttentionMixin, MistralAttention):
    """Attention of a Mistral layer >= l, as teacher or as student."""


class MistralSwiftKVModel(SwiftKVModelMixin, MistralModel):
    """Mistral decoder with SwiftKV from layer l on."""

    config: MistralSwiftKVConfig
    attention_class = MistralSwiftKVAttention
    norm_class = MistralRMSNorm


class MistralSwiftKVForCausalLM(SwiftKVCausalLMMixin, MistralForCausalLM):
    """Mistral language model with SwiftKV from layer l on."""

    config: MistralSwiftKVConfig
    model_class = MistralSwiftKVModel
