"""SwiftKV for Hugging Face models; importing this registers the classes with transformers' Auto classes.

`attention.py`, `swiftkv.py` and `configuration.py` hold what the architectures share; one small file an architecture
adds its classes; `rewire.py` makes a SwiftKV model of an ordinary one, `checkpoint.py` reads and writes checkpoints.
Another architecture is one more file and one more line in `ARCHITECTURES`; where its attention has other projections than
q_proj, k_proj and v_proj, as DeepSeek-V2's, the file says how they make queries, keys and values.
"""

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

from swiftkv.models.checkpoint import (  # noqa: E402
    load_any,
    load_base,
    load_sharing,
    load_swiftkv,
    load_tokenizer,
    save_base,
    save_swiftkv,
    spread,
)
from swiftkv.models.rewire import rewire  # noqa: E402
from swiftkv.models.swiftkv import LowerState  # noqa: E402

__all__ = [
    "ARCHITECTURES",
    "DeepseekV2SwiftKVConfig",
    "DeepseekV2SwiftKVForCausalLM",
    "DeepseekV2SwiftKVModel",
    "LlamaSwiftKVConfig",
    "LlamaSwiftKVForCausalLM",
    "LlamaSwiftKVModel",
    "LowerState",
    "MistralSwiftKVConfig",
    "MistralSwiftKVForCausalLM",
    "MistralSwiftKVModel",
    "Qwen2SwiftKVConfig",
    "Qwen2SwiftKVForCausalLM",
    "Qwen2SwiftKVModel",
    "Qwen3SwiftKVConfig",
    "Qwen3SwiftKVForCausalLM",
    "Qwen3SwiftKVModel",
    "load_any",
    "load_base",
    "load_sharing",
    "load_swiftkv",
    "load_tokenizer",
    "rewire",
    "save_base",
    "save_swiftkv",
    "spread",
]
