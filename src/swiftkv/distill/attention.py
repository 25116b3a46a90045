"""Attention over packed rows without a mask: every sample on its own, so that cost grows with sample lengths.

A row of 512 tokens with four samples needs a quarter of the products of a masked 512 x 512 attention. On a CPU, where
the masked kernel computes every product, this is a large part of a training step. On a GPU the models' own attention
(FlashAttention) does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "swiftkv_packed"
LONGEST_ROW = 1024  # the probabilities of a longer sample would take too much memory


def sample_lengths(position_ids: torch.Tensor) -> list[int]:
    """Lengths of the samples of packed rows [B, T] in order; positions restart at 0 and rows never share a sample."""
    starts = position_ids == 0
    starts[:, 0] = True
    edges = starts.flatten().nonzero().squeeze(-1)
    return torch.diff(edges, append=edges.new_tensor([position_ids.numel()])).tolist()


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
    """Causal attention inside each sample, with the calling convention of transformers' attention functions.

    Args:
        query: [B, heads, T, head size].
        key: [B, KV heads, T, head size].
        value: as `key`.
        scaling: of the products.
        lengths: tokens of each sample; they add up to B x T.

    Returns:
        [B, T, heads, head size] and None.
    """
    batch, _, tokens, _ = query.shape
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    query, key, value = (states.transpose(1, 2).flatten(0, 1) for states in (query, key, value))
    output = _PackedAttention.apply(query, key, value, scaling, lengths)
    return output.view(batch, tokens, *output.shape[1:]), None


class _PackedAttention(torch.autograd.Function):
    """[N, heads, head size] each. Plain matrix products: for short samples several times faster than torch's flash
    kernel for CPUs, backward above all. The probabilities are kept for the backward pass."""

    @staticmethod
    def forward(ctx, query, key, value, scaling, lengths):
        output = torch.empty(query.shape, dtype=query.dtype)
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
    """For each sample its part of every tensor [N, heads, head size], as views [heads, length, head size]."""
    return zip(*([part.transpose(0, 1) for part in tensor.split(lengths)] for tensor in tensors), strict=True)


@functools.lru_cache(maxsize=1)
def _future(length: int, dtype: torch.dtype) -> torch.Tensor:
    """[length, length]: -inf where the key comes after the query, else 0."""
    return torch.full((length, length), -torch.inf, dtype=dtype).triu_(1)


def compute_device() -> str:
    """Where trainings compute: this rank's GPU, or the processor if there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def applies(model: PreTrainedModel, max_length: int) -> bool:
    """Whether this attention computes what the model's own would, faster: on a CPU, short rows, no shorter window."""
    window = getattr(model.config, "sliding_window", None)
    return compute_device() == "cpu" and max_length <= min(window or LONGEST_ROW, LONGEST_ROW)


ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
