"""Attention that each token receives in a layer, the weight of its keys and values in a fitted start.

If errors of different tokens are independent, the squared error of an attention output is the sum of theirs, each times
the squared attention weight. So a token is weighted by the squared attention weights of all later queries.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from swiftkv.models.attention import each_table, sample_lengths

NAME = "swiftkv_received"
WEIGHTS = 2**26  # attention weights in flight, 256 MB


@torch.no_grad()
def received_attention(
    decoder: nn.Module, index: int, hidden: torch.Tensor, position_ids: torch.Tensor
) -> torch.Tensor:
    """Squared attention weights of the teacher's layer `index` >= l, summed over queries, mean over heads.

    Args:
        decoder: SwiftKV decoder with the teacher's projections.
        index: the layer.
        hidden: residual stream entering it [B, T, D].
        position_ids: int64 [B, T], restarting at every sample.

    Returns:
        float32 [B, T].
    """
    block, before = decoder.layers[index], decoder.config._attn_implementation
    tables = each_table(decoder.rotary_emb(hidden, position_ids), lambda table: table.to(hidden.device))
    decoder.config._attn_implementation = NAME
    try:
        block.self_attn(
            block.input_layernorm(hidden),
            position_embeddings=tables,
            attention_mask=None,
            lengths=sample_lengths(position_ids),
        )
    finally:
        decoder.config._attn_implementation = before
    return block.self_attn.__dict__.pop("received").view(position_ids.shape)


def record_received(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attention function that stores the received attention, float32 [B * T], in `module.received` and returns zeros.

    Args:
        module: the attention module.
        query: [B, heads, T, head size].
        key, value: [B, KV heads, T, head size]; values may have another size.
        attention_mask: ignored.
        lengths: tokens of each sample, B x T in all.
        scaling: factor of the attention scores; None means head size ** -0.5.
        sliding_window: latest tokens that a query sees; None means all.
    """
    batch, heads, tokens, size = query.shape
    scale = size**-0.5 if scaling is None else scaling
    queries, keys = (states.transpose(1, 2).flatten(0, 1).transpose(0, 1) for states in (query, key))
    received = torch.zeros(batch * tokens, device=query.device)
    samples = zip(*(states.split(lengths, dim=-2) for states in (queries, keys)), received.split(lengths), strict=True)
    for q, k, found in samples:
        length, grouped = len(found), q.unflatten(0, (len(k), -1))
        place = torch.arange(length, device=query.device)
        for part in place.split(max(1, WEIGHTS // (heads * length))):
            ahead = place - part[:, None]  # [queries, keys]
            unseen = (ahead > 0) | (ahead <= -(sliding_window or length))
            scores = (grouped[:, :, part] @ k[:, None].mT).float() * scale
            found += scores.masked_fill_(unseen, -torch.inf).softmax(-1).square_().sum((0, 1, 2)) / heads
    module.received = received
    return value.new_zeros(batch, tokens, heads, value.shape[-1]), None


AttentionInterface.register(NAME, record_received)
AttentionMaskInterface.register(NAME, sdpa_mask)
