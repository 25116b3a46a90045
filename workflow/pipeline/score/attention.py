"""Attention for CPU scoring that reads grouped keys and values in place.

transformers' sdpa function copies every KV head once for each of its query heads whenever there is a mask, which with
batched decoding costs ten times the attention itself. Here the query heads of a group become rows of one product with
their KV head, in pieces that fit a core's cache. Products are in the model's dtype, softmax is float32, as in transformers'
eager attention.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "grouped"
SCORES = 2**19  # attention scores in flight: what stays in a core's cache


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **arguments,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention with grouped KV heads, for inference.

    Args:
        query: [batch, heads, queries, head size].
        key, value: [batch, KV heads, keys, head size]; the values' size may be another.
        attention_mask: bool, True = attend, [batch or 1, 1, queries, keys]; None leaves it to transformers' sdpa.
        scaling: factor of the attention scores; None is head size ** -0.5.

    Returns:
        [batch, queries, heads, value head size] and None.
    """
    batch, heads, queries, size = query.shape
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    kv_heads, keys = key.shape[1:3]
    groups = heads // kv_heads
    scale = size**-0.5 if scaling is None else scaling
    rows = query.reshape(batch * kv_heads, groups * queries, size)
    key, value = (states.reshape(batch * kv_heads, keys, -1) for states in (key, value))
    hidden = ~attention_mask[:, 0].expand(batch, queries, keys)
    pairs = torch.arange(batch * kv_heads)
    output = rows.new_empty(*rows.shape[:2], value.shape[-1])
    for some in pairs.split(max(1, SCORES // (groups * queries * keys))):
        part = slice(int(some[0]), int(some[-1]) + 1)
        scores = (rows[part] @ key[part].transpose(1, 2)).float().mul_(scale).view(-1, groups, queries, keys)
        # A query that sees nothing (padding) must not become NaN, so no -inf.
        scores.masked_fill_(hidden[some // kv_heads, None], torch.finfo(torch.float32).min)
        output[part] = scores.softmax(dim=-1).to(value.dtype).view(-1, groups * queries, keys) @ value[part]
    return output.view(batch, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
