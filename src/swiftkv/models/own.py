"""What stands in a cache's place where tokens at full depth keep their own keys and values (own_key_values)."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class KeyValues:
    """In place of a cache: keeps what it is given, for one layer."""

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As a cache's."""
        self.key_value = key, value
        return key, value


class OwnKeyValues:
    """In place of a cache: what a layer makes of tokens at full depth takes its place among those of the others.

    Args:
        key_value: keys and values of all tokens [B, heads, T, size], before the cache.
        full_depth: which tokens run all layers, bool [B, T], or None.
        cache: where the result goes, or None.

    Raises:
        ValueError: several tokens come and `full_depth` is None.
    """

    def __init__(
        self, key_value: tuple[torch.Tensor, torch.Tensor], full_depth: torch.Tensor | None, cache: Cache | None
    ) -> None:
        self.key_value, self.full_depth, self.cache = key_value, full_depth, cache

    def update(self, key: torch.Tensor, value: torch.Tensor, *where: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As a cache's, of one layer: what `key` and `value` of [B, heads, T or 1 (the last), size] become."""
        given, tokens = self.key_value, key.shape[2]
        if tokens < given[0].shape[2]:
            both = [
                torch.cat([all_[:, :, :-tokens], own], dim=2) for all_, own in zip(given, (key, value), strict=True)
            ]
        elif tokens == 1:
            both = [key, value]
        elif self.full_depth is None:
            raise ValueError("say which tokens run all layers, the answer's and the last of the prompt: full_depth")
        else:
            full = self.full_depth[:, None, :, None]
            both = [torch.where(full, own, all_) for all_, own in zip(given, (key, value), strict=True)]
        return tuple(both) if self.cache is None else self.cache.update(*both, *where)
