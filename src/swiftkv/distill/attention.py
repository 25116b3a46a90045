"""Attention over packed rows, sample by sample.

A row of 512 tokens with four samples needs a quarter of the products of a masked 512 x 512 attention. On GPUs
FlashAttention 2 or torch's FlexAttention skip the others, on CPUs our own kernel does (`packed_attention`).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_flash_attn_2_available, is_torch_flex_attn_available

from swiftkv.device import compute_device
from swiftkv.distill.recipe import ForwardSettings
from swiftkv.errors import UserError
from swiftkv.models.attention import sample_lengths

# transformers' names of attention functions. The last one uses a dense mask; chosen on request only, and on CPUs for rows
# that PACKED does not fit.
PACKED, FLASH, FLEX, MASKED = "swiftkv_packed", "flash_attention_2", "flex_attention", "sdpa"
LONGEST_ROW = 1024  # on CPUs, as probabilities are kept for the backward pass
LAYER_TYPES = ("full_attention", "sliding_attention")


def choose_kernel(recipe: ForwardSettings, window: int | None = None) -> str:
    """Choose the attention function of a training on this machine; cheap, so that it can stand before anything is loaded.

    Args:
        recipe: gives `attention`, dtype and tokens per row.
        window: the model's sliding window, or None.

    Raises:
        UserError: what the recipe asks for does not work here, or "auto" finds only a dense mask on a GPU.
    """
    asked = recipe.attention
    if compute_device() == "cpu":
        if asked in (FLASH, FLEX):
            raise UserError(f"attention: {asked} trains on GPUs only, and there is none; use attention: auto")
        longest = LONGEST_ROW if window is None else min(window, LONGEST_ROW)
        return PACKED if asked == "auto" and recipe.max_length <= longest else MASKED
    capability = torch.cuda.get_device_capability()
    has_triton = is_torch_flex_attn_available() and importlib.util.find_spec("triton") is not None
    can = {
        FLASH: is_flash_attn_2_available() and capability >= (8, 0) and recipe.dtype != "float32",
        FLEX: has_triton and capability >= (7, 0),
        MASKED: asked != "auto",
    }
    if asked != "auto" and not can[asked]:
        raise UserError(
            f"attention: {asked} cannot run here: {FLASH} needs the package flash-attn, a GPU of compute "
            f"capability 8.0 and 16-bit weights, {FLEX} needs Triton and capability 7.0"
        )
    if not any(can.values()):
        raise UserError(
            "neither FlashAttention 2 nor FlexAttention can run here, and a dense mask over packed rows wastes most of "
            "the time: install flash-attn or Triton, or ask for the mask with attention: sdpa"
        )
    return asked if asked != "auto" else FLASH if can[FLASH] else FLEX


def arguments(name: str, position_ids: torch.Tensor) -> dict[str, Any]:
    """Return keyword arguments of the decoder that tell attention function `name` about packed rows.

    FlexAttention and sdpa need none: the decoder makes their mask from `position_ids` [B, T], restarting at every sample.
    """
    if name not in (PACKED, FLASH):
        return {}
    no_mask = {"attention_mask": dict.fromkeys(LAYER_TYPES)}  # the decoder makes none
    lengths = sample_lengths(position_ids)
    if name == PACKED:
        return no_mask | {"lengths": lengths}
    edges = torch.tensor([0, *lengths], device=position_ids.device).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    return no_mask | {
        "cu_seq_lens_q": edges,
        "cu_seq_lens_k": edges,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float,
    lengths: list[int],
    **_,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sample, as an attention function of transformers.

    Args:
        query: [B, heads, T, head size].
        key, value: [B, KV heads, T, head size]; values may have another size.
        scaling: factor of the attention scores.
        lengths: tokens of each sample, B x T in all.

    Returns:
        [B, T, heads, value head size] and None.
    """
    batch, _, tokens, _ = query.shape
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    query, key, value = (states.transpose(1, 2).flatten(0, 1) for states in (query, key, value))
    output = _PackedAttention.apply(query, key, value, scaling, lengths)
    return output.view(batch, tokens, *output.shape[1:]), None


class _PackedAttention(torch.autograd.Function):
    """Attention by matrix products on [N, heads, head size], keeping the probabilities for the backward pass.

    For short samples several times faster than torch's flash kernel for CPUs, in the backward pass above all.
    """

    @staticmethod
    def forward(ctx, query, key, value, scaling, lengths):
        output = torch.empty(value.shape, dtype=query.dtype)
        mask = _future(max(lengths), query.dtype)
        probabilities = []
        for q, k, v, out in _samples(lengths, query, key, value, output):
            scores = torch.baddbmm(mask[: q.shape[1], : q.shape[1]], q, k.transpose(1, 2), alpha=scaling)
            probabilities.append(scores.softmax(-1))
            out.copy_(probabilities[-1] @ v)
        ctx.save_for_backward(query, key, value, *probabilities)
        ctx.scaling, ctx.lengths = scaling, lengths
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, *probabilities = ctx.saved_tensors
        gradients = [torch.empty(states.shape, dtype=states.dtype) for states in (query, key, value)]
        parts = _samples(ctx.lengths, query, key, value, gradient, *gradients)
        for p, (q, k, v, g, q_gradient, k_gradient, v_gradient) in zip(probabilities, parts, strict=True):
            v_gradient.copy_(p.transpose(1, 2) @ g)
            slope = torch._softmax_backward_data(g @ v.transpose(1, 2), p, -1, p.dtype).mul_(ctx.scaling)
            q_gradient.copy_(slope @ k)
            k_gradient.copy_(slope.transpose(1, 2) @ q)
        return *gradients, None, None


def _samples(lengths: list[int], *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield each sample's part of every tensor [N, heads, head size], as views [heads, length, head size]."""
    return zip(*([part.transpose(0, 1) for part in tensor.split(lengths)] for tensor in tensors), strict=True)


@functools.lru_cache(maxsize=1)
def _future(length: int, dtype: torch.dtype) -> torch.Tensor:
    """[length, length]: -inf where the key comes after the query, else 0."""
    return torch.full((length, length), -torch.inf, dtype=dtype).triu_(1)


ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
