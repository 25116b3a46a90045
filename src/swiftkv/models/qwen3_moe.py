"""SwiftKV for Qwen3-MoE: Qwen3's attention and, as in DeepSeek-V2, experts and routers that stay the model's own."""

from swiftkv.models.deepseek_v2 import CausalLM, Model
from swiftkv.models.qwen3 import Attention

__all__ = ["Attention", "CausalLM", "Model"]
