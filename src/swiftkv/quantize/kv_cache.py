"""Per-token FP8 KV cache (Sec. 5.3): float8_e4m3fn with a dynamic scale a token, no calibration, no training.

Granularity: one scale for the keys and one for the values of a token in a layer, over all KV heads. That is what
per-token quantisation means where the paper takes it from (ZeroQuant, Yao et al., 2022: one scale for each token's row
of an activation matrix), and it costs 8 bytes a token and layer whatever the number of heads. A scale for each head as
well would gain little: e4m3 is a floating-point format, so a head whose values lie 2^-8 below the largest head's
still keeps full relative precision.

Quantisation happens where a token enters the cache, so each token is quantized once, keys after RoPE, and prefill and
decode attend to the same numbers. It works for every Hugging Face model that attends to what `Cache.update` returns.
"""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedConfig

KV_CACHES = ("auto", "fp8")
FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max  # 448


def quantize(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise keys or values with one scale a token, amax / 448.

    Args:
        states: [batch, KV heads, tokens, head size], any floating-point dtype.

    Returns:
        Values float8_e4m3fn of the same shape, and scales float32 [batch, 1, tokens, 1]; value * scale ~ state.
    """
    amax = states.abs().amax(dim=(1, 3), keepdim=True).float()
    # The floor keeps a token of zeros (and of float32 denormals) free of divisions by zero.
    scale = (amax / FP8_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    return (states.float() / scale).to(FP8), scale


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """value * scale, rounded to `dtype`; shapes as `quantize` returns them."""
    return (values.float() * scale).to(dtype)


def round_trip(states: torch.Tensor) -> torch.Tensor:
    """What attention reads back after `states` went through the FP8 cache; same shape and dtype."""
    return dequantize(*quantize(states), states.dtype)


class Fp8Cache(DynamicCache):
    """A `DynamicCache` that holds what a per-token FP8 cache would return.

    It keeps the dequantized values in the model's dtype: scores are those of an FP8 cache, memory is not.
    """

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Quantise the new tokens' keys and values [batch, KV heads, tokens, head size], then cache as usual."""
        return super().update(round_trip(key_states), round_trip(value_states), layer_idx, *args, **kwargs)


def new_cache(kv_cache: str, config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model with `config`: `auto` in the model's dtype, `fp8` per-token FP8.

    Raises:
        ValueError: another name.
    """
    if kv_cache not in KV_CACHES:
        raise ValueError(f"KV cache {kv_cache!r} is unknown; use one of {', '.join(KV_CACHES)}")
    return (Fp8Cache if kv_cache == "fp8" else DynamicCache)(config=config)
