"""The architectures there are; importing this registers their classes with transformers' Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from swiftkv.models.deepseek_v2 import (
    DeepseekV2SwiftKVConfig,
    DeepseekV2SwiftKVForCausalLM,
    DeepseekV2SwiftKVModel,
)
from swiftkv.models.llama import LlamaSwiftKVConfig, LlamaSwiftKVForCausalLM, LlamaSwiftKVModel
from swiftkv.models.mistral import MistralSwiftKVConfig, MistralSwiftKVForCausalLM, MistralSwiftKVModel
from swiftkv.models.qwen2 import Qwen2SwiftKVConfig, Qwen2SwiftKVForCausalLM, Qwen2SwiftKVModel
from swiftkv.models.qwen3 import Qwen3SwiftKVConfig, Qwen3SwiftKVForCausalLM, Qwen3SwiftKVModel

# model_type of the ordinary checkpoint -> the three SwiftKV classes.
ARCHITECTURES = {
    "llama": (LlamaSwiftKVConfig, LlamaSwiftKVModel, LlamaSwiftKVForCausalLM),
    "mistral": (MistralSwiftKVConfig, MistralSwiftKVModel, MistralSwiftKVForCausalLM),
    "qwen2": (Qwen2SwiftKVConfig, Qwen2SwiftKVModel, Qwen2SwiftKVForCausalLM),
    "qwen3": (Qwen3SwiftKVConfig, Qwen3SwiftKVModel, Qwen3SwiftKVForCausalLM),
    "deepseek_v2": (DeepseekV2SwiftKVConfig, DeepseekV2SwiftKVModel, DeepseekV2SwiftKVForCausalLM),
}

for _config, _model, _causal_lm in ARCHITECTURES.values():
    AutoConfig.register(_config.model_type, _config)
    AutoModel.register(_config, _model)
    AutoModelForCausalLM.register(_config, _causal_lm)
