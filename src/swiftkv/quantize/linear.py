"""Linear layers with FP8 weights and activations (W8A8) in the compressed-tensors scheme of the published checkpoints.

Weights are float8_e4m3fn with one static scale per output channel, activations with one dynamic scale per token.

Parameters store two FP8 numbers in one bfloat16 word: DeepSpeed casts every floating-point parameter to bfloat16, which
would convert float8 parameters but leaves words as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from swiftkv.quantize.kv_cache import FP8, quantize

WORD = torch.bfloat16
SCALE = ".weight_scale"


class Float8Linear(nn.Module):
    """A frozen linear layer, W8A8.

    Attributes:
        weight: float8_e4m3fn [outputs, inputs] as words [outputs, inputs / 2].
        weight_scale: float32 [outputs, 1] as words [outputs, 2].
        bias: [outputs] or None.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Create uninitialised parameters; `dtype` is the bias's."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _frozen(torch.empty(out_features, in_features // 2, dtype=WORD, device=device))
        self.weight_scale = _frozen(torch.empty(out_features, 2, dtype=WORD, device=device))
        self.bias = _frozen(torch.empty(out_features, dtype=dtype, device=device)) if bias else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map [..., inputs] to [..., outputs] in the same dtype; gradients ignore the rounding of `states`."""
        return _Product.apply(states, self.weight, self.weight_scale, self.bias)

    def _apply(self, fn, recurse: bool = True) -> nn.Module:
        super()._apply(fn, recurse)
        if self.weight.dtype != WORD:
            raise TypeError("a model with FP8 weights cannot be cast to another dtype")
        return self


class _Product(torch.autograd.Function):
    """Saves the parameters, not views of them: ZeRO-3 frees and gathers their data in place."""

    @staticmethod
    def forward(ctx, states, words, scale_words, bias):
        ctx.save_for_backward(words, scale_words)
        codes, scales = quantize(states.reshape(-1, states.shape[-1]), (1,))
        by_row = nn.functional.ScalingType.RowWise  # of torch 2.10, which serving alone does not need
        product = nn.functional.scaled_mm(
            codes,
            words.view(FP8).t(),
            scales,
            by_row,
            scale_words.view(torch.float32).t(),
            by_row,
            bias=bias,
            output_dtype=states.dtype,
        )
        return product.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ _dense(*ctx.saved_tensors, gradient.dtype), None, None, None


def dense_weight(linear: nn.Module, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a linear layer's weight [outputs, inputs], detached; FP8 is dequantized to `dtype` (default float32)."""
    if isinstance(linear, Float8Linear):
        return _dense(linear.weight.detach(), linear.weight_scale.detach(), dtype or torch.float32)
    return linear.weight.detach()


def is_quantized(config: Any) -> bool:
    """Return True if a configuration, or the content of a config.json, has a `quantization_config`."""
    key = "quantization_config"
    return bool(config.get(key) if isinstance(config, Mapping) else getattr(config, key, None))


def quantized_names(model: nn.Module) -> set[str]:
    """Names of the linear layers that the scheme quantizes: all but the language-model head."""
    return {name for name, module in _linears(model) if name != "lm_head"}


def float8_names(model: nn.Module) -> set[str]:
    """Names of the linear layers that are FP8."""
    return {name for name, module in _linears(model) if isinstance(module, Float8Linear)}


def use_float8(model: nn.Module, names: Iterable[str]) -> None:
    """Make exactly these linear layers FP8; replaced layers have uninitialised parameters."""
    names = set(names)
    for name, module in list(_linears(model)):
        if isinstance(module, Float8Linear) == (name in names):
            continue
        kind = Float8Linear if name in names else nn.Linear
        bias, dtype = module.bias is not None, torch.get_default_dtype() if module.bias is None else module.bias.dtype
        device = module.weight.device
        model.set_submodule(name, kind(module.in_features, module.out_features, bias=bias, device=device, dtype=dtype))


def stored_as_words(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Convert a checkpoint's FP8 weight or scale to words; return other tensors unchanged."""
    if tensor.dtype == FP8:
        return (tensor if tensor.storage_offset() % 2 == 0 else tensor.clone()).view(WORD)
    return tensor.float().contiguous().view(WORD) if name.endswith(SCALE) else tensor


def checkpoint_tensors(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert a state dict to the checkpoint scheme: words to FP8, other weights of linear layers quantized.

    Args:
        model: the model of the tensors.
        tensors: its state dict or a part of it, on any device.
    """
    tensors = dict(tensors)
    eight_bit = float8_names(model)
    for name in quantized_names(model):
        weight, scale = f"{name}.weight", f"{name}{SCALE}"
        if tensors.get(weight) is None:
            continue
        if name in eight_bit:
            tensors[weight], tensors[scale] = tensors[weight].view(FP8), tensors[scale].view(torch.float32)
        else:
            tensors[weight], tensors[scale] = quantize(tensors[weight], (1,))
    return tensors


def _linears(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, (nn.Linear, Float8Linear)))


def _dense(words: torch.Tensor, scale_words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (words.view(FP8).float() * scale_words.view(torch.float32)).to(dtype)


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
