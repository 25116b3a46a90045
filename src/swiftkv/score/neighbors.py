"""Similarity of neighboring layers' keys and of their values, which AcrossKV lets one cache stand for (Section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swiftkv.statistics import ratio


class Neighbors:
    """Gathers the keys, or the values, of all layers on the same tokens.

    Two measures of layers i and i + 1, for i from 0 on:

    * cosine: between the vectors of the same KV head, mean over heads and tokens. It says how near the second layer's cache
      is to the first layer's as it stands. RoPE turns both in the same way, so it is that of keys before RoPE too.
    * cka: linear centered kernel alignment of the vectors of all heads (Kornblith et al., ICML 2019), between 0 and 1. It
      stays the same if a layer's vectors are rotated or its heads change places, which a trained projection can undo.
    """

    def __init__(self) -> None:
        self._cosines: list[list[float]] = []  # sums over the tokens of each document
        self._tokens: list[int] = []
        self._sums: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []
        self._products: list[torch.Tensor] = []

    def add(self, layers: Sequence[torch.Tensor]) -> None:
        """Add one document's vectors [KV heads, tokens, size] of each layer, which may lie on several devices."""
        cosines, before = [], None
        for number, layer in enumerate(layers):
            vectors = layer.float()
            flat = vectors.transpose(0, 1).flatten(1)  # [tokens, KV heads * size]
            self._gather(self._sums, number, flat.double().sum(0))
            self._gather(self._squares, number, (flat.mT @ flat).double())
            if before is not None:
                other = before.to(vectors.device)
                cosine = torch.nn.functional.cosine_similarity(other, vectors, dim=-1)
                cosines.append(cosine.double().mean(0).sum().item())
                product = other.transpose(0, 1).flatten(1).mT @ flat
                self._gather(self._products, number - 1, product.double())
            before = vectors
        self._cosines.append(cosines)
        self._tokens.append(layers[0].shape[1])

    @staticmethod
    def _gather(sums: list[torch.Tensor], place: int, added: torch.Tensor) -> None:
        if place == len(sums):
            sums.append(added)
        else:
            sums[place] += added

    def result(self) -> dict[str, list[Any]]:
        """cosine, its standard error over documents (cosine_stderr) and cka, each L - 1 numbers."""
        cosines = [ratio(pair, self._tokens) for pair in zip(*self._cosines, strict=True)]
        return {
            "cosine": [cosine["value"] for cosine in cosines],
            "cosine_stderr": [cosine["stderr"] for cosine in cosines],
            "cka": [self._cka(place) for place in range(len(self._products))],
        }

    def _cka(self, place: int) -> float:
        """||X'Y||^2 / (||X'X|| ||Y'Y||) of the centered vectors of layers `place` and `place` + 1."""
        tokens, device = sum(self._tokens), self._products[place].device
        first, second = (total.to(device) for total in self._sums[place : place + 2])
        own, others = (squares.to(device) for squares in self._squares[place : place + 2])
        shared = (self._products[place] - first[:, None] * second / tokens).square().sum()
        spread = [
            (squares - total[:, None] * total / tokens).norm() for squares, total in ((own, first), (others, second))
        ]
        return (shared / (spread[0] * spread[1])).item()
