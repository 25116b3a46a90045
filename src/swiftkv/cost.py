"""FLOPs, parameters and KV cache bytes of a model and its SwiftKV variants, and the speed-up limits that follow.

FLOPs count what has to be computed: two per multiply-add, causal attention over the positions that a token sees, none for
the embedding look-up, logits for sampled tokens only. Norms, activations, rotary embeddings, biases and softmax are left
out, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftkv.architectures import Architecture, architecture, has_bias, key_value_heads
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

KV_DTYPE_BYTES = {"bfloat16": 2, "fp8": 1}
GIGA, GIBI = 10**9, 2**30

_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ("num_experts_per_tok", "moe_intermediate_size")


@dataclass(frozen=True)
class Experts:
    """Experts of a decoder.

    Attributes:
        routed: experts of a layer that its router chooses from.
        active: how many of them a token passes.
        shared: experts that every token passes besides.
        intermediate_size: that of one expert.
        dense: layers without experts, and with an ordinary MLP.
    """

    routed: int
    active: int
    shared: int
    intermediate_size: int
    dense: frozenset[int]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], routed: str) -> Experts:
        """Read a config.json whose field `routed` has the number of experts."""
        every = config.get("decoder_sparse_step") or 1
        dense = {layer for layer in range(config["num_hidden_layers"]) if (layer + 1) % every}
        dense |= {*range(config.get("first_k_dense_replace") or 0), *(config.get("mlp_only_layers") or ())}
        return cls(
            routed=config[routed],
            active=config["num_experts_per_tok"],
            shared=config.get("n_shared_experts") or 0,
            intermediate_size=config["moe_intermediate_size"],
            dense=frozenset(dense),
        )


@dataclass(frozen=True)
class Dimensions:
    """Dimensions of a decoder.

    `head_dim` is the size of a head's queries and keys, `v_head_dim` that of its values; `q_lora_rank` is 0 if queries have
    no latent. `windows` has one entry per layer: the sliding window in tokens, or None for full causal attention. `experts`
    is None if all layers are dense.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int
    q_lora_rank: int
    vocab_size: int
    windows: tuple[int | None, ...]
    experts: Experts | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dimensions:
        """Read a Hugging Face config.json; for latent attention return `LatentDimensions`.

        Raises:
            UserError: unknown architecture, or a missing or impossible field.
        """
        row = architecture(config.get("model_type"))
        config = {
            "num_experts": config.get("num_local_experts"),
            **config,
        }  # transformers writes the former as the latter
        sizes = (*_REQUIRED, *(_LATENT if row.latent else ()))
        for field in (*sizes, *((row.experts, *_EXPERTS) if row.experts else ())):
            if not isinstance(config.get(field), int) or config[field] < 1:
                raise UserError(f"the model config has {field} = {config.get(field)!r}, not a positive integer")
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if row.latent:
            head_dim = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        return (LatentDimensions if row.latent else Dimensions)(
            **{"v_head_dim": head_dim} | {field: config[field] for field in sizes},
            q_lora_rank=config.get("q_lora_rank") or 0,
            experts=Experts.from_config(config, row.experts) if row.experts else None,
            num_key_value_heads=key_value_heads(config),
            head_dim=head_dim,
            windows=_windows(row, config),
        )

    @property
    def query_weights(self) -> int:
        """Weights of one layer's query projection, or of both with a latent."""
        outputs = self.num_attention_heads * self.head_dim
        return self.q_lora_rank * (self.hidden_size + outputs) if self.q_lora_rank else self.hidden_size * outputs

    @property
    def output_weights(self) -> int:
        """Weights of one layer's output projection."""
        return self.num_attention_heads * self.v_head_dim * self.hidden_size

    def key_value_weights(self, heads: int | None = None) -> tuple[int, int]:
        """Weights of one layer's key and value projections with `heads` KV heads; None means `num_key_value_heads`."""
        weights = self.hidden_size * (heads or self.num_key_value_heads) * self.head_dim
        return weights, weights

    def mlp_weights(self, *, active: bool = True) -> tuple[int, ...]:
        """Weights of each layer's MLP, or of its router and experts: those that one token uses, or all."""
        dense, experts = 3 * self.hidden_size * self.intermediate_size, self.experts
        if experts is None:
            return (dense,) * self.num_hidden_layers
        used = experts.shared + (experts.active if active else experts.routed)
        sparse = self.hidden_size * (3 * experts.intermediate_size * used + experts.routed)
        return tuple(dense if layer in experts.dense else sparse for layer in range(self.num_hidden_layers))

    @property
    def pair_flops(self) -> int:
        """Attention FLOPs per pair of query and key, over all heads of a layer."""
        return 2 * self.num_attention_heads * (self.head_dim + self.v_head_dim)

    def cached(self, heads: int | None = None) -> int:
        """Numbers per token in one layer's KV cache; `heads` as in `key_value_weights`."""
        return 2 * (heads or self.num_key_value_heads) * self.head_dim


@dataclass(frozen=True)
class LatentDimensions(Dimensions):
    """Dimensions of a decoder with latent attention (DeepSeek-V2); names as in config.json.

    The cache holds the latent and the rotary key. Keys and values are counted as expanded once per token.
    """

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int

    def key_value_weights(self, heads: int | None = None) -> tuple[int, int]:
        """See `Dimensions`; the projection to latent and rotary key counts as the keys'."""
        expansion = self.kv_lora_rank * self.num_attention_heads
        return self.hidden_size * self.cached() + expansion * self.qk_nope_head_dim, expansion * self.v_head_dim

    def cached(self, heads: int | None = None) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim


def _windows(row: Architecture, config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if types := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = {"every layer": 0, "upper layers": config.get("max_window_layers", layers)}.get(str(row.window), layers)
    if not config.get("use_sliding_window", row.window == "every layer"):
        first = layers
    return tuple(window if layer >= first else None for layer in range(layers))


def _resolve(arch: Dimensions, spec: SwiftKVSpec | None) -> SwiftKVSpec:
    """Return `spec`; None, the unchanged model, becomes l = L."""
    return spec or SwiftKVSpec(arch.num_hidden_layers, arch.num_hidden_layers)


def _visible(tokens: int, window: int | None) -> int:
    """Pairs (query, key) of causal attention over `tokens` positions: the sum of min(i, window) for i = 1..tokens."""
    window = min(tokens, window or tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def _key_value_weights(arch: Dimensions, spec: SwiftKVSpec) -> tuple[int, int]:
    """Weights of all key projections and of all value projections, over layers < l and groups."""
    below, above = arch.key_value_weights(), arch.key_value_weights(spec.num_key_value_heads)
    lower, groups = spec.num_key_value_layers, len(spec.groups)
    return lower * below[0] + groups * above[0], lower * below[1] + groups * above[1]


def _flops(
    arch: Dimensions, spec: SwiftKVSpec, tokens: int, layers: int, visible: int, logits: int = 0
) -> dict[str, int]:
    """FLOPs by operation of `tokens` tokens through the first `layers` layers.

    Args:
        visible: pairs (query, key), summed over these layers.
        logits: number of sampled tokens.
    """
    keys, values = _key_value_weights(arch, spec)
    return {
        "vocab": logits * 2 * arch.vocab_size * arch.hidden_size,
        "q": tokens * layers * 2 * arch.query_weights,
        "k": tokens * 2 * keys,
        "v": tokens * 2 * values,
        "o": tokens * layers * 2 * arch.output_weights,
        "mlp": tokens * 2 * sum(arch.mlp_weights()[:layers]),
        "attention": visible * arch.pair_flops,
    }


def prefill_flops(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, int]:
    """FLOPs to fill the KV cache with a prompt of `tokens` tokens, by operation.

    Layers >= l only compute K and V (Sec. 3.2); running the last token through them belongs to `request_flops`. `spec`
    None is the unchanged model, here and below.
    """
    spec = _resolve(arch, spec)
    layers = spec.num_key_value_layers
    return _flops(arch, spec, tokens, layers, sum(_visible(tokens, window) for window in arch.windows[:layers]))


def decode_flops(arch: Dimensions, spec: SwiftKVSpec | None, position: int) -> dict[str, int]:
    """FLOPs of one sampled token through every layer, at 1-based `position`, by operation.

    With own_key_values layers >= l compute both kinds of keys and values, as the served model does.
    """
    spec = _resolve(arch, spec)
    visible = sum(min(position, window or position) for window in arch.windows)
    flops = _flops(arch, spec, 1, arch.num_hidden_layers, visible, 1)
    if spec.own_key_values:
        keys, values = arch.key_value_weights()
        upper = spec.num_hidden_layers - spec.num_key_value_layers
        flops["k"], flops["v"] = flops["k"] + 2 * upper * keys, flops["v"] + 2 * upper * values
    return flops


def request_flops(arch: Dimensions, spec: SwiftKVSpec | None, prompt: int, output: int) -> dict[str, int]:
    """FLOPs of a request of `prompt` input and `output` >= 1 generated tokens, by operation.

    The last prompt token runs every layer (footnote 3) and gives the first output token, so `output - 1` tokens are
    decoded after it.

    Raises:
        ValueError: fewer than one prompt or output token.
    """
    if prompt < 1 or output < 1:
        raise ValueError(f"a request has at least 1 prompt and 1 output token, not {prompt} and {output}")
    total = prefill_flops(arch, spec, prompt - 1)
    for position in range(prompt, prompt + output):
        for operation, flops in decode_flops(arch, spec, position).items():
            total[operation] += flops
    return total


def passed_parameters(arch: Dimensions) -> float:
    """Parameters that a token passes on its way to its logits: of its own experts, and without the embedding."""
    return sum(decode_flops(arch, None, 1).values()) / 2


def speedup_limits(arch: Dimensions, spec: SwiftKVSpec | None, prompt: int, output: int) -> dict[str, float]:
    """Upper bounds of the speed-up over the unchanged model where compute is the limit.

    Returns:
        request_speedup, for requests of `prompt` and `output` tokens; prefill_speedup, for such prompts alone.
    """

    request, own_request = (sum(request_flops(arch, one, prompt, output).values()) for one in (None, spec))
    prefill, own_prefill = (sum(prefill_flops(arch, one, prompt).values()) for one in (None, spec))
    return {"request_speedup": request / own_request, "prefill_speedup": prefill / own_prefill}


def kv_bytes_per_token(
    arch: Dimensions, spec: SwiftKVSpec | None, dtype: str = "bfloat16", *, merged: bool = False
) -> int:
    """Bytes of K and V per token over all layers.

    An FP8 cache's scales are not counted, as in the paper.

    Args:
        dtype: a key of `KV_DTYPE_BYTES`.
        merged: only one layer's are kept (Merge-all-Layers, Sec. 5.1).
    """
    spec = _resolve(arch, spec)
    lower = 1 if merged else spec.num_key_value_layers
    kept = lower * arch.cached() + len(spec.groups) * arch.cached(spec.num_key_value_heads)
    return kept * KV_DTYPE_BYTES[dtype]


def added_weights(arch: Dimensions, spec: SwiftKVSpec) -> int:
    """Weights of the projections that SwiftKV adds: queries per layer >= l (none with own_key_values), keys and values per
    group."""
    upper = 0 if spec.own_key_values else spec.num_hidden_layers - spec.num_key_value_layers
    return upper * arch.query_weights + len(spec.groups) * sum(arch.key_value_weights(spec.num_key_value_heads))


def parameter_count(config: Mapping[str, Any], spec: SwiftKVSpec | None = None) -> int:
    """Parameters of a model, biases and norms included, tied embeddings once.

    Args:
        config: config.json of a model, SwiftKV or not.
        spec: the variant, counted without what is not served: an early exit head, and the teacher's projections that it
            does not use.

    Raises:
        UserError: as `Dimensions.from_config`.
    """
    row, arch = architecture(config.get("model_type")), Dimensions.from_config(config)
    spec = _resolve(arch, spec)
    width, layers, groups = arch.hidden_size, arch.num_hidden_layers, len(spec.groups)
    projections, key_value = spec.num_key_value_layers + groups, sum(_key_value_weights(arch, spec))
    if spec.own_key_values:  # besides the model's own
        projections, key_value = projections + groups, key_value + groups * sum(arch.key_value_weights())
    count = arch.vocab_size * width * (1 if config.get("tie_word_embeddings") else 2)
    count += layers * (arch.query_weights + arch.output_weights) + key_value + sum(arch.mlp_weights(active=False))
    count += (2 * layers + 1 + (groups > 0)) * width  # norms
    if isinstance(arch, LatentDimensions):
        query, keys = arch.q_lora_rank, projections * arch.cached()  # outputs of projections with a bias
        count += layers * query + projections * arch.kv_lora_rank  # norms of the latents
    else:
        query, keys = arch.query_weights // width, key_value // width
        count += (layers + projections) * arch.head_dim if row.normalized else 0
        count += layers * (2 * arch.intermediate_size + width) if config.get("mlp_bias") else 0
    count += layers * query + keys if has_bias(row.bias, config) else 0
    return count + (layers * width if has_bias(row.output_bias, config) else 0)
