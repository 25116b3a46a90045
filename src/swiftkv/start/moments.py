"""Regressions from the states entering a layer l to the keys and values above it, over the training text.

For a layer l that SwiftKV may start at, s = norm(h_l) is what its projections read, where norm is layer l's
input_layernorm, from which norm_swiftkv starts. For each layer i >= l, k_i (before RoPE) and v_i are what the teacher's
own projections make of h_i, and w_i is the attention that a token receives there (`received_attention`). Summed over tokens,
    gram(l, i) = sum w_i s s',   cross(l, i) = sum w_i s [k_i v_i]',   covariance(l) = sum s s',
    query_energy(i) = sum |q_i|^2 by head and RoPE frequency,
    final(l) = sum s f' for the final normed hidden states f, which an early exit head is fitted to.
In latent attention the latent and the rotary key (before norm and RoPE) take the place of k_i and v_i, and queries do not
count. Where the teacher's projections have a bias, s has one more feature, 1. Kept are the ridge regressions that solve
(gram + penalty) fit = cross, covariance and query_energy.

Sums are kept as 64-bit integers, a power of two the unit: integers add exactly, so no order of the text and no number
of ranks changes a bit of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from swiftkv.architectures import architecture
from swiftkv.device import ranks
from swiftkv.errors import UserError
from swiftkv.io import atomic_path
from swiftkv.quantize.linear import dense_weight
from swiftkv.start.received import received_attention
from swiftkv.tensor_file import open_tensors

FINAL = "final"  # the final normed hidden states, among those entering the layers
BITS = 61  # of an integer, for its largest possible sum; one more is the sign, one is spare for rounding


class ExactSum:
    """A sum of tensors that comes out the same in any order."""

    def __init__(self, shape: tuple[int, ...], largest: float, device: torch.device) -> None:
        """`largest` bounds the absolute value of every element of the whole sum."""
        self.units = torch.zeros(shape, dtype=torch.int64, device=device)
        self.scale = 2.0 ** (BITS - math.ceil(math.log2(max(largest, 1.0))))

    def add(self, values: torch.Tensor) -> None:
        """Add a float tensor, rounded to the unit."""
        self.units += values.double().mul_(self.scale).round_().long()

    def total(self) -> torch.Tensor:
        """The sum over all ranks, float64."""
        if ranks() > 1:
            torch.distributed.all_reduce(self.units)
        return self.units.double() / self.scale


class MomentSums:
    """The sums of one teacher, while its forward passes go on."""

    def __init__(self, decoder: nn.Module, layers: Sequence[int], tokens: int) -> None:
        """Empty sums for a teacher.

        Args:
            decoder: a SwiftKV decoder with the teacher's projections in its layers from min(layers) on.
            layers: every l to fit a start for.
            tokens: the most that will be added.
        """
        row = architecture(decoder.config.model_type)
        self.targets = row.fitted
        self.decoder, self.layers, self.tokens = decoder, sorted(set(layers)), 0
        self.depth = len(decoder.layers)
        self.covariance, self.gram, self.cross, self.energy = {}, {}, {}, {}
        width = decoder.config.hidden_size
        feature = {layer: self._largest_feature(self.decoder.layers[layer].input_layernorm) for layer in self.layers}
        largest_final, device = self._largest_feature(decoder.norm), decoder.norm.weight.device
        self.final = {
            layer: ExactSum((width, width), feature[layer] * largest_final * tokens, device) for layer in self.layers
        }
        for index in range(self.layers[0], self.depth):
            attention = decoder.layers[index].self_attn
            linears = [getattr(attention, projection) for projection in self.targets]
            device, biased = linears[0].weight.device, linears[0].bias is not None
            target = max(self._largest_output(index, projection) for projection in self.targets)
            outputs = sum(linear.out_features for linear in linears)
            if not row.latent:
                query = self._largest_output(index, "q_proj")
                heads = attention.q_proj.out_features // attention.head_dim
                self.energy[index] = ExactSum((heads, attention.head_dim // 2), 2 * query**2 * tokens, device)
            for layer in self.layers:
                square, largest = (width + biased,) * 2, feature[layer] ** 2 * tokens
                if layer == index:
                    self.covariance[layer] = ExactSum(square, largest, device)
                if layer <= index:  # the weights of a text add up to at most its tokens
                    self.gram[layer, index] = ExactSum(square, largest, device)
                    largest = feature[layer] * target * tokens
                    self.cross[layer, index] = ExactSum((width + biased, outputs), largest, device)

    def _largest_feature(self, norm: nn.Module) -> float:
        """A bound of |s|: normalized states are at most sqrt(D), and twice that leaves room for 16-bit rounding."""
        gain = norm.weight.float().abs().max().item()
        return max(1.0, 2 * gain * math.sqrt(self.decoder.config.hidden_size))

    def _largest_output(self, layer: int, projection: str) -> float:
        """A bound of what a projection of a layer gives (Cauchy and Schwarz), with the same room."""
        block = self.decoder.layers[layer]
        linear = getattr(block.self_attn, projection)
        norms = (dense_weight(linear).float() * block.input_layernorm.weight.float()).norm(dim=1)
        largest = 2 * norms.max().item() * math.sqrt(self.decoder.config.hidden_size)
        return largest + (0.0 if linear.bias is None else 2 * linear.bias.float().abs().max().item())

    @torch.no_grad()
    def add(self, hidden: dict[int | str, torch.Tensor], counted: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Add some text.

        Args:
            hidden: the residual stream entering each layer from min(layers) on, [B, T, D], and as `FINAL` f.
            counted: bool [B, T], tokens that count; all others are padding.
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
                self.covariance[index].add(features[index].T @ features[index])
                self.final[index].add(states.float().T.to(final.device) @ final)
            received = received_attention(self.decoder, index, hidden[index], position_ids.to(device))
            root = received[counted.to(device)].sqrt()[:, None]
            targets = torch.cat([linear(states) for linear in linears], dim=1).float() * root
            for layer, rows in features.items():
                weighted = rows.to(device) * root
                self.gram[layer, index].add(weighted.T @ weighted)
                self.cross[layer, index].add(weighted.T @ targets)
            if index in self.energy:
                query = attention.q_proj(states).float().unflatten(1, (-1, 2, attention.head_dim // 2))
                self.energy[index].add(query.square().sum(dim=(0, 2)))

    def fits(self, ridge: float) -> dict[str, torch.Tensor]:
        """Add up all ranks and solve; every rank calls this. Tensors as `Moments.read` finds them.

        Args:
            ridge: penalty on the squared weights, as a share of the mean square of a feature.

        Raises:
            UserError: there is too little text, or it does not determine the regressions.
        """
        tokens = torch.tensor(self.tokens, device=self.final[self.layers[0]].units.device)
        if ranks() > 1:
            torch.distributed.all_reduce(tokens)
        self.tokens = int(tokens)
        tensors = {f"query_energy_{index}": energy.total().cpu() for index, energy in self.energy.items()}
        for layer in self.layers:
            covariance, final = self.covariance[layer].total(), self.final[layer].total()
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
                gram, cross = (sums[layer, index].total() for sums in (self.gram, self.cross))
                tensors[f"fit_{layer}_{index}"] = regression(gram, cross, ridge, layer).float().cpu()
        return tensors


def regression(gram: torch.Tensor, cross: torch.Tensor, ridge: float, layer: int) -> torch.Tensor:
    """The ridge regression of targets on features, [targets, F], of their sums [F, F] and [F, targets], float64.

    Raises:
        UserError: the states entering `layer` allow no single solution.
    """
    factor, failed = torch.linalg.cholesky_ex(penalised(gram, ridge))
    if failed:
        raise UserError(
            f"the states entering layer {layer} do not determine a fit, as some features are combinations of "
            "others; raise start_ridge or start_tokens"
        )
    return torch.cholesky_solve(cross, factor).T


def penalised(gram: torch.Tensor, ridge: float) -> torch.Tensor:
    """The left side of the normal equations."""
    return gram + ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)


def write_fits(output: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
    """Write what `MomentSums.fits` gave for one l or more; `description` has `layers`, every l, and `tokens`."""
    with atomic_path(output) as scratch:
        save_file(tensors, scratch, metadata={"description": json.dumps(description, sort_keys=True)})


@dataclass(frozen=True)
class Moments:
    """What a start at a layer l is made of.

    Attributes:
        layer: l.
        fits: for each layer i >= l the regression of its targets on s, float32 [key width + value width, F]; F is D, or
            D + 1 with biases.
        covariance: float64 [F, F].
        query_energy: for each layer i >= l, float64 [heads, head size / 2]; none in latent attention.
        final: the regression of the final normed hidden states on s, float32 [D, D].
        description: what the writer said, among it `tokens`, how many were added.
    """

    layer: int
    fits: dict[int, torch.Tensor]
    covariance: torch.Tensor
    query_energy: dict[int, torch.Tensor]
    final: torch.Tensor
    description: dict[str, Any]

    @classmethod
    def read(cls, path: Path, layer: int) -> Moments:
        """The moments for l = `layer`.

        Raises:
            UserError: the file is missing or damaged, or has none for that layer.
        """
        file, description = open_tensors(path, (f"covariance_{layer}", f"final_{layer}"))
        names = file.keys()
        above = sorted(int(name.rpartition("_")[2]) for name in names if name.startswith(f"fit_{layer}_"))
        return cls(
            layer,
            {index: file.get_tensor(f"fit_{layer}_{index}") for index in above},
            file.get_tensor(f"covariance_{layer}"),
            {index: file.get_tensor(name) for index in above if (name := f"query_energy_{index}") in names},
            file.get_tensor(f"final_{layer}"),
            description,
        )
