"""Per-token FP8 KV cache (Sec. 5.3): float8_e4m3fn with one dynamic scale per token, without calibration or training.

A token has one scale for its keys and one for its values in a layer, over all KV heads, as in the per-token
quantization that the paper cites (ZeroQuant, Yao et al., 2022). A scale per head would gain little: e4m3 is a
floating-point format, so a head 2^-8 below the largest one still has full relative precision.

Each token is quantized once, as it enters the cache, keys after RoPE; prefill and decode attend to the same numbers.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedConfig

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max  # 448


def quantize(tensor: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to float8_e4m3fn with one float32 scale, amax / 448, per slice over `dims`, which the scales keep as size 1."""
    scales = tensor.abs().amax(dim=dims, keepdim=True).float() / FP8_MAX
    scales = scales.clamp(min=torch.finfo(torch.float32).tiny)  # zeros and float32 denormals
    return (tensor.float() / scales).to(FP8), scales


def round_trip(states: torch.Tensor) -> torch.Tensor:
    """Quantize and dequantize keys or values [batch, KV heads, tokens, head size] with one scale per token."""
    values, scales = quantize(states, (1, 3))
    return (values.float() * scales).to(states.dtype)


class Peak:
    """Largest absolute key that FP8 caches received, and the bound above which its rounding can blur attention.

    e4m3 rounds a number by up to 2^-4 of itself, so a key K can shift an attention logit by K / (16 sqrt(head size)) per
    unit of the query: half a nat at the bound, 8 sqrt(head size). The biases of Qwen2 and Qwen2.5 give such keys, and
    their FP8 caches have scored nothing (QwenLM/Qwen3#840, verl-project/verl#4435).
    """

    def __init__(self) -> None:
        self._largest, self._bound = torch.zeros(()), 0.0

    def see(self, keys: torch.Tensor) -> None:
        """Take the maximum over keys [..., head size], without waiting for a GPU."""
        largest = keys.abs().amax().float()
        self._largest = torch.maximum(largest, self._largest.to(largest.device))
        self._bound = 8 * math.sqrt(keys.shape[-1])

    def include(self, found: dict[str, float]) -> None:
        """Merge the result of another peak's `found`."""
        if found:
            self._largest, self._bound = self._largest.clamp(min=found["largest"]), found["bound"]

    def found(self) -> dict[str, float]:
        """Return `largest` and `bound`; empty if no key was seen."""
        return {"largest": self._largest.item(), "bound": self._bound} if self._bound else {}

    def warn(self) -> None:
        """Print a warning if the largest key is above the bound."""
        found = self.found()
        if found and found["largest"] > found["bound"]:
            print(
                f"warning: keys of up to {found['largest']:.0f} enter the FP8 KV cache; above {found['bound']:.0f} its rounding "
                "can blur attention until scores fall to nothing, with a scale a token and still more with one a tensor: "
                "compare with kv_cache auto before FP8 is used",
                flush=True,
            )


class Fp8Cache(DynamicCache):
    """A `DynamicCache` with the values of a per-token FP8 cache, dequantized: it has the scores but not the memory of FP8.

    Args:
        peak: records the largest key before quantization.
    """

    def __init__(self, *args, peak: Peak | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.peak = peak or Peak()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Quantize and cache the new keys and values [batch, KV heads, tokens, head size]."""
        self.peak.see(key_states)
        return super().update(round_trip(key_states), round_trip(value_states), layer_idx, *args, **kwargs)


def new_cache(kv_cache: str, config: PreTrainedConfig, peak: Peak | None = None) -> DynamicCache:
    """Make an empty cache: `auto` in the model's dtype, or per-token `fp8` with an optional `peak`."""
    return {"auto": DynamicCache, "fp8": partial(Fp8Cache, peak=peak)}[kv_cache](config=config)
