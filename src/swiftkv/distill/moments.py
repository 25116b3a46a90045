"""Regressions from the states entering layer l to the teacher's keys and values of layers >= l, over training text.

s = norm(h_l) with layer l's input_layernorm is the input of the SwiftKV projections. For each layer i >= l, k_i (before
RoPE) and v_i are the teacher's keys and values, and w_i is the sum of the squared attention weights that later queries give
the token: with independent errors per token, the squared error of an attention output is the sum of theirs, each times its
squared attention weight. f are the final normed hidden states. Summed over tokens,
    gram(l, i) = sum w_i s s',   cross(l, i) = sum w_i s [k_i v_i]',   covariance(l) = sum s s',   final(l) = sum s f',
    query_energy(i) = sum |q_i|^2 by head and RoPE frequency.
In latent attention the latent and the rotary key (before norm and RoPE) replace k_i and v_i, and there is no query_energy.
If the teacher's projections have a bias, s has one more feature, 1. Stored are the solutions of
(gram + penalty) fit = cross, likewise for `final`, and covariance and query_energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from swiftkv.architectures import architecture
from swiftkv.errors import UserError
from swiftkv.models.attention import each_table, sample_lengths
from swiftkv.tensor_file import open_tensors

FINAL = "final"  # key of the final normed hidden states, beside the layers'
NAME = "swiftkv_received"  # of the attention function
WEIGHTS = 2**26  # attention weights in flight, 256 MB


class MomentSums:
    """Accumulates the sums of one teacher over its forward passes."""

    def __init__(self, decoder: nn.Module, layers: Sequence[int]) -> None:
        """Start at zero, in float64.

        Args:
            decoder: SwiftKV decoder with the teacher's projections in layers >= min(layers).
            layers: every l to fit a start for.
        """
        row = architecture(decoder.config.model_type)
        self.targets = row.fitted
        self.decoder, self.layers, self.tokens = decoder, sorted(set(layers)), 0
        self.depth = len(decoder.layers)
        self.covariance, self.gram, self.cross, self.energy = {}, {}, {}, {}
        width, device = decoder.config.hidden_size, decoder.norm.weight.device
        self.final = {layer: _zeros(width, width, device) for layer in self.layers}
        for index in range(self.layers[0], self.depth):
            attention = decoder.layers[index].self_attn
            linears = [getattr(attention, projection) for projection in self.targets]
            device, features = linears[0].weight.device, width + (linears[0].bias is not None)
            if not row.latent:
                heads = attention.q_proj.out_features // attention.head_dim
                self.energy[index] = _zeros(heads, attention.head_dim // 2, device)
            if index in self.layers:
                self.covariance[index] = _zeros(features, features, device)
            for layer in (layer for layer in self.layers if layer <= index):
                self.gram[layer, index] = _zeros(features, features, device)
                self.cross[layer, index] = _zeros(features, sum(linear.out_features for linear in linears), device)

    @torch.no_grad()
    def add(self, hidden: dict[int | str, torch.Tensor], counted: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Add a batch of text.

        Args:
            hidden: residual stream entering each layer >= min(layers), and f under `FINAL`, [B, T, D] each.
            counted: tokens to count, bool [B, T]; the others are padding.
            position_ids: int64 [B, T], restarting at every sample.
        """
        self.tokens += int(counted.sum())
        final = hidden[FINAL][counted.to(hidden[FINAL].device)].float()
        features: dict[int, torch.Tensor] = {}
        for index in range(self.layers[0], self.depth):
            block, device = self.decoder.layers[index], hidden[index].device
            attention = block.self_attn
            linears = [getattr(attention, projection) for projection in self.targets]
            states = block.input_layernorm(hidden[index])[counted.to(device)]
            if index in self.covariance:
                constant = states.new_ones(len(states), int(linears[0].bias is not None))
                features[index] = torch.cat([states, constant], dim=1).float()
                self.covariance[index] += features[index].T @ features[index]
                self.final[index] += states.float().T.to(final.device) @ final
            received = received_attention(self.decoder, index, hidden[index], position_ids.to(device))
            root = received[counted.to(device)].sqrt()[:, None]
            targets = torch.cat([linear(states) for linear in linears], dim=1).float() * root
            for layer, rows in features.items():
                weighted = rows.to(device) * root
                self.gram[layer, index] += weighted.T @ weighted
                self.cross[layer, index] += weighted.T @ targets
            if index in self.energy:
                query = attention.q_proj(states).float().unflatten(1, (-1, 2, attention.head_dim // 2))
                self.energy[index] += query.square().sum(dim=(0, 2))

    def fits(self, ridge: float) -> dict[str, torch.Tensor]:
        """Solve the regressions.

        Args:
            ridge: penalty on the squared weights, relative to the mean square of a feature.

        Returns:
            Tensors by the names that `Moments.read` reads.

        Raises:
            UserError: too little text, or the regressions are not determined.
        """
        tensors = {f"query_energy_{index}": energy.cpu() for index, energy in self.energy.items()}
        for layer in self.layers:
            covariance, final = self.covariance[layer], self.final[layer]
            if self.tokens < len(covariance):
                raise UserError(
                    f"a start cannot be fitted to {self.tokens} tokens, fewer than the {len(covariance)} features of "
                    "the model; raise start_tokens or give more data"
                )
            width = len(final)  # an early exit head has no bias, so it gets no constant feature
            tensors[f"covariance_{layer}"] = covariance.cpu()
            plain = covariance[:width, :width].to(final.device)
            tensors[f"final_{layer}"] = regression(plain, final, ridge, layer).float().cpu()
            for index in range(layer, self.depth):
                tensors[f"fit_{layer}_{index}"] = (
                    regression(self.gram[layer, index], self.cross[layer, index], ridge, layer).float().cpu()
                )
        return tensors


def _zeros(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=torch.float64, device=device)


@torch.no_grad()
def received_attention(
    decoder: nn.Module, index: int, hidden: torch.Tensor, position_ids: torch.Tensor
) -> torch.Tensor:
    """Squared attention weights of the teacher's layer `index` >= l, summed over queries, mean over heads.

    Args:
        decoder: SwiftKV decoder with the teacher's projections.
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
    scaling: float,
    sliding_window: int | None = None,
    **_,
) -> tuple[torch.Tensor, None]:
    """Attention function that stores the received attention, float32 [B * T], in `module.received` and returns zeros.

    Args:
        query: [B, heads, T, head size].
        key, value: [B, KV heads, T, head size]; values may have another size.
        attention_mask: ignored.
        lengths: tokens of each sample, B x T in all.
        scaling: factor of the attention scores.
        sliding_window: latest tokens that a query sees; None means all.
    """
    batch, heads, tokens, _ = query.shape
    queries, keys = (states.transpose(1, 2).flatten(0, 1).transpose(0, 1) for states in (query, key))
    received = torch.zeros(batch * tokens, device=query.device)
    samples = zip(*(states.split(lengths, dim=-2) for states in (queries, keys)), received.split(lengths), strict=True)
    for q, k, found in samples:
        length, grouped = len(found), q.unflatten(0, (len(k), -1))
        place = torch.arange(length, device=query.device)
        for part in place.split(max(1, WEIGHTS // (heads * length))):
            ahead = place - part[:, None]  # [queries, keys]
            unseen = (ahead > 0) | (ahead <= -(sliding_window or length))
            scores = (grouped[:, :, part] @ k[:, None].mT).float() * scaling
            found += scores.masked_fill_(unseen, -torch.inf).softmax(-1).square_().sum((0, 1, 2)) / heads
    module.received = received
    return value.new_zeros(batch, tokens, heads, value.shape[-1]), None


AttentionInterface.register(NAME, record_received)
AttentionMaskInterface.register(NAME, sdpa_mask)


def regression(gram: torch.Tensor, cross: torch.Tensor, ridge: float, layer: int) -> torch.Tensor:
    """Solve the ridge regression [targets, F] for float64 sums `gram` [F, F] and `cross` [F, targets].

    Raises:
        UserError: the states entering `layer` do not determine it.
    """
    penalty = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + penalty)
    if failed:
        raise UserError(
            f"the states entering layer {layer} do not determine a fit, as some features are combinations of "
            "others; raise start_ridge or start_tokens"
        )
    return torch.cholesky_solve(cross, factor).T


@dataclass(frozen=True)
class Moments:
    """Moments for a fitted start at layer l.

    Attributes:
        fits: regression of the targets on s by layer i >= l, float32 [key width + value width, F]; F is D, or D + 1 with
            biases.
        covariance: float64 [F, F].
        query_energy: float64 [heads, head size / 2] by layer i >= l; empty in latent attention.
        final: regression of the final normed hidden states on s, float32 [D, D].
        description: JSON metadata of the file.
    """

    fits: dict[int, torch.Tensor]
    covariance: torch.Tensor
    query_energy: dict[int, torch.Tensor]
    final: torch.Tensor
    description: dict[str, Any]

    @classmethod
    def read(cls, path: Path, layer: int) -> Moments:
        """Read the moments for l = `layer`.

        Raises:
            UserError: the file is missing or damaged, or lacks that layer.
        """
        file, description = open_tensors(path, (f"covariance_{layer}", f"final_{layer}"))
        names = file.keys()
        above = sorted(int(name.rpartition("_")[2]) for name in names if name.startswith(f"fit_{layer}_"))
        return cls(
            {index: file.get_tensor(f"fit_{layer}_{index}") for index in above},
            file.get_tensor(f"covariance_{layer}"),
            {index: file.get_tensor(name) for index in above if (name := f"query_energy_{index}") in names},
            file.get_tensor(f"final_{layer}"),
            description,
        )
