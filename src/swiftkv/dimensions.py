"""Dimensions of a model that its cost depends on, and the weights, FLOPs and cache of a layer that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.architectures import Architecture, architecture
from swiftkv.errors import UserError

_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size")


@dataclass(frozen=True)
class Dimensions:
    """Dimensions of a dense decoder that its cost depends on.

    `windows` has one entry a layer: the sliding window in tokens, or None for full causal attention.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    windows: tuple[int | None, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dimensions:
        """Read the dimensions from a Hugging Face `config.json`; of latent attention they are `LatentDimensions`.

        Raises:
            UserError: an unknown architecture, or a missing or impossible field.
        """
        row = architecture(config.get("model_type"))
        needed = (*_REQUIRED, *(_LATENT + _EXPERTS if row.latent else ()))
        for field in needed:
            if not isinstance(config.get(field), int) or config[field] < 1:
                raise UserError(f"the model config has {field} = {config.get(field)!r}, not a positive integer")
        heads = config["num_attention_heads"]
        optional = {field: config.get(field) or 0 for field in ("q_lora_rank", "first_k_dense_replace")}
        return (LatentDimensions if row.latent else Dimensions)(
            **{field: config[field] for field in needed},
            **(optional if row.latent else {}),
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            windows=_windows(row, config),
        )

    @property
    def query_weights(self) -> int:
        """Weights of a layer's query projection."""
        return self.hidden_size * self.num_attention_heads * self.head_dim

    @property
    def output_weights(self) -> int:
        """Weights of a layer's projection after attention."""
        return self.query_weights

    def key_value_weights(self, heads: int | None = None) -> tuple[int, int]:
        """Weights of a layer's projections of keys and of values, with so many KV heads; None is the model's number."""
        rows = (heads or self.num_key_value_heads) * self.head_dim
        return self.hidden_size * rows, self.hidden_size * rows

    def mlp_weights(self, *, active: bool = True) -> tuple[int, ...]:
        """Weights of each layer's feed-forward part: those that a token goes through, or all."""
        return (3 * self.hidden_size * self.intermediate_size,) * self.num_hidden_layers

    @property
    def pair_flops(self) -> int:
        """FLOPs of attention for one query and one key, over all heads of a layer."""
        return 4 * self.num_attention_heads * self.head_dim

    def cached(self, heads: int | None = None) -> int:
        """Numbers that a layer's KV cache keeps for a token; `heads` as in `key_value_weights`."""
        return 2 * (heads or self.num_key_value_heads) * self.head_dim


@dataclass(frozen=True)
class LatentDimensions(Dimensions):
    """Dimensions of a decoder with latent attention and experts (DeepSeek-V2), by the names of its config.json.

    The cache keeps the latent and the rotary key. Keys and values are counted as made of the latent once for each token.
    `q_lora_rank` is 0 where queries have no latent.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    moe_intermediate_size: int

    @property
    def query_weights(self) -> int:
        """See `Dimensions`."""
        rows = self.num_attention_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        return self.q_lora_rank * (self.hidden_size + rows) if self.q_lora_rank else self.hidden_size * rows

    @property
    def output_weights(self) -> int:
        """See `Dimensions`."""
        return self.num_attention_heads * self.v_head_dim * self.hidden_size

    def key_value_weights(self, heads: int | None = None) -> tuple[int, int]:
        """See `Dimensions`; the projection to latent and rotary key counts to the keys."""
        made = self.kv_lora_rank * self.num_attention_heads
        return self.hidden_size * self.cached() + made * self.qk_nope_head_dim, made * self.v_head_dim

    def mlp_weights(self, *, active: bool = True) -> tuple[int, ...]:
        """See `Dimensions`; the first layers are dense, all others have a router and experts."""
        experts = self.n_shared_experts + (self.num_experts_per_tok if active else self.n_routed_experts)
        sparse = self.hidden_size * (3 * self.moe_intermediate_size * experts + self.n_routed_experts)
        dense = super().mlp_weights()[: self.first_k_dense_replace]
        return dense + (sparse,) * (self.num_hidden_layers - len(dense))

    @property
    def pair_flops(self) -> int:
        """See `Dimensions`."""
        return 2 * self.num_attention_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    def cached(self, heads: int | None = None) -> int:
        """See `Dimensions`."""
        return self.kv_lora_rank + self.qk_rope_head_dim


def _windows(row: Architecture, config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if types := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = {"every layer": 0, "upper layers": config.get("max_window_layers", layers)}.get(str(row.window), layers)
    if row.window == "upper layers" and not config.get("use_sliding_window"):
        first = layers
    return tuple(window if layer >= first else None for layer in range(layers))
