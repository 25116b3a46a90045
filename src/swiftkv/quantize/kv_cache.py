"""Per-token FP8 KV cache (Sec. 5.3): float8_e4m3fn with a dynamic scale a token, no calibration, no training.

Granularity: one scale for the keys and one for the values of a token in a layer, over all KV heads. That is what
per-token quantization means where the paper takes it from (ZeroQuant, Yao et al., 2022: one scale for each token's row
of an activation matrix), and it costs 8 bytes a token and layer whatever the number of heads. A scale for each head as
well would gain little: e4m3 is a floating-point format, so a head whose values lie 2^-8 below the largest head's
still keeps full relative precision.

Quantization happens where a token enters the cache, so each token is quantized once, keys after RoPE, and prefill and
decode attend to the same numbers. It works for every Hugging Face model that attends to what `Cache.update` returns.
"""

from __future__ import annotations

import math

import torch
from transformers import DynamicCache, PreTrainedConfig

KV_CACHES = ("auto", "fp8")
FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max  # 448


def quantize(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize keys or values with one scale a token, amax / 448.

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


class Peak:
    """The largest absolute key that FP8 caches were given, and the bound above which rounding it can blur attention.

    e4m3 rounds a number by up to 2^-4 of itself at any scale, so a key of K moves the attention logit of a query with 1 in its
    place by up to K / (16 sqrt(head size)). At the bound, 8 sqrt(head size), that is half a nat. Qwen2's and Qwen2.5's biases
    give such keys, and FP8 caches of them have scored nothing (QwenLM/Qwen3#840, verl-project/verl#4435).
    """

    def __init__(self) -> None:
        self._seen: dict[torch.device, torch.Tensor] = {}
        self._found: dict[str, float] = {}

    def see(self, keys: torch.Tensor) -> None:
        """Look at keys [..., head size]; waits for no GPU."""
        largest, before = keys.abs().amax(), self._seen.get(keys.device)
        self._seen[keys.device] = largest if before is None else torch.maximum(before, largest)
        self._found["bound"] = 8 * math.sqrt(keys.shape[-1])

    def include(self, found: dict[str, float]) -> None:
        """Add what another one has found."""
        self._found |= {name: max(value, self._found.get(name, 0.0)) for name, value in found.items()}

    def found(self) -> dict[str, float]:
        """`largest` and `bound`; empty where no key was seen."""
        for largest in self._seen.values():
            self.include({"largest": largest.item()})
        return dict(self._found)

    def warn(self) -> None:
        """Print a sentence if the largest key is above the bound."""
        found = self.found()
        if found and found["largest"] > found["bound"]:
            print(
                f"warning: keys of up to {found['largest']:.0f} enter the FP8 KV cache; above {found['bound']:.0f} its rounding "
                "can blur attention until scores fall to nothing, with a scale a token and still more with one a tensor: "
                "compare with kv_cache auto before FP8 is used",
                flush=True,
            )


class Fp8Cache(DynamicCache):
    """A `DynamicCache` that holds what a per-token FP8 cache would return.

    It keeps the dequantized values in the model's dtype: scores are those of an FP8 cache, memory is not.

    Args:
        peak: sees all keys before they are quantized.
    """

    def __init__(self, *args, peak: Peak | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.peak = peak or Peak()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Quantize the new tokens' keys and values [batch, KV heads, tokens, head size], then cache as usual."""
        self.peak.see(key_states)
        return super().update(round_trip(key_states), round_trip(value_states), layer_idx, *args, **kwargs)


def new_cache(kv_cache: str, config: PreTrainedConfig, peak: Peak | None = None) -> DynamicCache:
    """An empty cache for a model with `config`: `auto` in the model's dtype, `fp8` per-token FP8, whose keys `peak` sees.

    Raises:
        ValueError: another name.
    """
    if kv_cache not in KV_CACHES:
        raise ValueError(f"KV cache {kv_cache!r} is unknown; use one of {', '.join(KV_CACHES)}")
    return Fp8Cache(config=config, peak=peak) if kv_cache == "fp8" else DynamicCache(config=config)
