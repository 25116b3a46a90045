"""Cost model: FLOPs of prefill and of whole requests, KV cache bytes, and the limits they set for each variant.

Two counts are kept apart.

* `prefill_flops`, `decode_flops` and `request_flops` count what has to be computed: two FLOPs a multiply-add, causal
  attention over the positions a token really sees, no FLOPs for the embedding look-up, logits only for tokens that
  are sampled from. The limits come from this count.
* `published_gflops` counts as the paper does in Table 1 (and the blog in its Table 2). For Llama-3.1-70B at 128K tokens
  it gives the published numbers. It differs in three ways, found by working back from those numbers:
  the vocabulary stands for embedding and head, each 2 V d FLOPs, for every token; "128K" (V = 128,256) is 131,072; and
  the attention is divided by 2^30 where everything else is divided by 10^9, which makes it 160 and not 172.

Norms, activations, rotary embeddings, biases and softmax are left out of both, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swiftkv.architectures import architecture, check_latent_heads, has_bias
from swiftkv.dimensions import Dimensions, LatentDimensions
from swiftkv.errors import UserError
from swiftkv.spec import SwiftKVSpec

OPERATIONS = ("vocab", "q", "k", "v", "o", "mlp", "attention")
KV_DTYPE_BYTES = {"bfloat16": 2, "fp8": 1}
GIGA, GIBI = 10**9, 2**30


def _visible(tokens: int, window: int | None) -> int:
    """Pairs (query, key) of causal attention over `tokens` positions: the sum of min(i, window) for i = 1..tokens."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def _key_value_weights(arch: Dimensions, spec: SwiftKVSpec | None) -> tuple[int, int]:
    """Weights of all projections of keys and of values, over layers and groups."""
    lower = arch.num_hidden_layers if spec is None else spec.num_key_value_layers
    below = arch.key_value_weights()
    above = (0, 0) if spec is None else arch.key_value_weights(spec.num_key_value_heads)
    groups = 0 if spec is None else len(spec.groups)
    return lower * below[0] + groups * above[0], lower * below[1] + groups * above[1]


def _flops(
    arch: Dimensions, spec: SwiftKVSpec | None, tokens: int, layers: int, visible: int, logits: int
) -> dict[str, int]:
    """FLOPs by operation of `tokens` tokens through the first `layers` layers.

    Args:
        visible: pairs (query, key), summed over these layers.
        logits: tokens that are sampled from.
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


def prefill_flops(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int, *, vocab: bool = False) -> dict[str, int]:
    """FLOPs to fill the KV cache with a prompt of `tokens` tokens, by operation (`OPERATIONS`).

    Layers from l on only compute K and V (Sec. 3.2); the last token's way through them to the first output token
    belongs to `request_flops`.

    Args:
        spec: the variant; None is the unchanged model.
        vocab: also count the logits of every token (2 V d FLOPs each).
    """
    _check(arch, spec)
    ordinary = arch.num_hidden_layers if spec is None else spec.num_key_value_layers
    visible = sum(_visible(tokens, window) for window in arch.windows[:ordinary])
    return _flops(arch, spec, tokens, ordinary, visible, tokens if vocab else 0)


def decode_flops(arch: Dimensions, spec: SwiftKVSpec | None, position: int) -> dict[str, int]:
    """FLOPs of one token that goes through every layer and is sampled from, at 1-based `position`, by operation.

    With own_key_values it has keys and values of both kinds above l, as the served model computes them.
    """
    _check(arch, spec)
    visible = sum(min(position, window or position) for window in arch.windows)
    flops = _flops(arch, spec, 1, arch.num_hidden_layers, visible, 1)
    if spec is not None and spec.own_key_values:
        keys, values = arch.key_value_weights()
        upper = spec.num_hidden_layers - spec.num_key_value_layers
        flops["k"], flops["v"] = flops["k"] + 2 * upper * keys, flops["v"] + 2 * upper * values
    return flops


def request_flops(arch: Dimensions, spec: SwiftKVSpec | None, prompt: int, output: int) -> dict[str, int]:
    """FLOPs of a request of `prompt` input and `output` >= 1 generated tokens, by operation.

    The last prompt token goes through every layer (footnote 3) and gives the first output token, so `output - 1`
    tokens are decoded after it.

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


def speedup_limits(arch: Dimensions, spec: SwiftKVSpec | None, prompt: int, output: int) -> dict[str, float]:
    """How much faster than the unchanged model a variant can be at most, where compute counts.

    Returns:
        request_speedup, of requests of `prompt` and `output` tokens; prefill_speedup, of such prompts.
    """

    def flops(variant: SwiftKVSpec | None) -> dict[str, int]:
        request, prefill = request_flops(arch, variant, prompt, output), prefill_flops(arch, variant, prompt)
        return {"request_speedup": sum(request.values()), "prefill_speedup": sum(prefill.values())}

    unchanged, rewired = flops(None), flops(spec)
    return {name: unchanged[name] / rewired[name] for name in unchanged}


def kv_bytes_per_token(
    arch: Dimensions, spec: SwiftKVSpec | None, dtype: str = "bfloat16", *, merged: bool = False
) -> int:
    """Bytes of K and V kept for one token over all layers; `dtype` is a key of `KV_DTYPE_BYTES`.

    Where they are `merged`, one layer's stand for all (Merge-all-Layers, Sec. 5.1). An FP8 cache's scales (one a
    token, or one a tensor) are not counted, as in the paper.
    """
    _check(arch, spec)
    if spec is None:
        kept = (1 if merged else arch.num_hidden_layers) * arch.cached()
    else:
        kept = spec.num_key_value_layers * arch.cached() + len(spec.groups) * arch.cached(spec.num_key_value_heads)
    return kept * KV_DTYPE_BYTES[dtype]


def added_weights(arch: Dimensions, spec: SwiftKVSpec) -> int:
    """Weights of the projections that SwiftKV adds: queries of each layer >= l (none with own_key_values), keys and
    values of each group."""
    upper = 0 if spec.own_key_values else spec.num_hidden_layers - spec.num_key_value_layers
    return upper * arch.query_weights + len(spec.groups) * sum(arch.key_value_weights(spec.num_key_value_heads))


def parameter_count(config: Mapping[str, Any], spec: SwiftKVSpec | None = None) -> int:
    """Parameters of a model, biases and norms included, tied embeddings once.

    Args:
        config: config.json of a model, SwiftKV or not.
        spec: the variant, without the teacher's projections that it does not use; None is the unchanged model.

    Raises:
        UserError: as `Dimensions.from_config`.
    """
    row, arch = architecture(config.get("model_type")), Dimensions.from_config(config)
    _check(arch, spec)
    width, layers = arch.hidden_size, arch.num_hidden_layers
    makers = layers if spec is None else spec.num_key_value_layers + len(spec.groups)  # of keys and values
    key_value = sum(_key_value_weights(arch, spec))
    if spec is not None and spec.own_key_values:  # beside the model's own
        makers, key_value = makers + len(spec.groups), key_value + len(spec.groups) * sum(arch.key_value_weights())
    count = arch.vocab_size * width * (1 if config.get("tie_word_embeddings") else 2)
    count += layers * (arch.query_weights + arch.output_weights) + key_value + sum(arch.mlp_weights(active=False))
    count += (2 * layers + 1) * width  # norms
    if spec is not None and spec.groups:
        count += width  # norm_swiftkv
    if isinstance(arch, LatentDimensions):
        query, keys = arch.q_lora_rank, makers * arch.cached()  # where biases are
        count += layers * query + makers * arch.kv_lora_rank  # norms of the latents
    else:
        query, keys = arch.query_weights // width, key_value // width
        count += (layers + makers) * arch.head_dim if row.normalized else 0
        count += layers * (2 * arch.intermediate_size + width) if config.get("mlp_bias") else 0
    count += layers * query + keys if has_bias(row.bias, config) else 0
    return count + (layers * width if has_bias(row.output_bias, config) else 0)


def published_vocab_size(vocab_size: int) -> int:
    """The vocabulary as the paper counts it: 128,256 is "128K", read as 128 x 1,024."""
    return vocab_size if vocab_size % 1024 == 0 else round(vocab_size / 1000) * 1024


def published_gflops(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int) -> dict[str, float]:
    """GFLOPs per prefill token by operation, counted and scaled as in the paper's Table 1 (see the module's text).

    The mean token sees half of the `tokens` positions; attention is in units of 2^30 FLOPs, the others of 10^9.
    """
    flops = prefill_flops(arch, spec, tokens)
    ordinary = arch.num_hidden_layers if spec is None else spec.num_key_value_layers
    # The causal mean over S positions is (S + 1) / 2; the paper counts S / 2.
    surplus = ordinary * arch.pair_flops / 2
    gflops = {operation: count / tokens / GIGA for operation, count in flops.items()}
    gflops["vocab"] = 4 * published_vocab_size(arch.vocab_size) * arch.hidden_size / GIGA
    gflops["attention"] = (flops["attention"] / tokens - surplus) / GIBI
    return gflops


def cost_record(
    name: str,
    title: str,
    config: Mapping[str, Any],
    specs: Mapping[str, Mapping[str, Any] | None],
    sequence_length: int,
    output_tokens: int = 256,
    source: Any = None,
) -> dict[str, Any]:
    """Everything the cost model says about a model and its variants, as one JSON-ready record.

    Args:
        name: the model's key.
        title: the model's printed name.
        config: its Hugging Face configuration.
        specs: variant -> fields of `SwiftKVSpec`, or None for the unchanged model; in the order of the tables.
        sequence_length: prompt tokens S of the FLOPs and of the limits.
        output_tokens: n of the request limit.
        source: what the configuration came from; kept as it is.

    Raises:
        UserError: an unknown architecture or an impossible variant.
    """
    if sequence_length < 1 or output_tokens < 1:
        raise UserError(f"sequence length ({sequence_length}) and output tokens ({output_tokens}) must be at least 1")
    arch = Dimensions.from_config(config)
    variants = {}
    for variant, fields in specs.items():
        try:
            spec = None if fields is None else SwiftKVSpec(**fields)
            variants[variant] = _variant_record(arch, spec, sequence_length, output_tokens)
        except (TypeError, ValueError) as error:
            raise UserError(f"variant {variant} of {title}: {error}") from None
    return {
        "model": name,
        "title": title,
        "sequence_length": sequence_length,
        "output_tokens": output_tokens,
        "architecture": {
            **{field: value for field, value in vars(arch).items() if field != "windows"},
            "sliding_window": next((window for window in arch.windows if window), None),
            "published_vocab_size": published_vocab_size(arch.vocab_size),
        },
        "variants": variants,
        "model_source": source,
    }


def _variant_record(arch: Dimensions, spec: SwiftKVSpec | None, tokens: int, output: int) -> dict[str, Any]:
    flops = prefill_flops(arch, spec, tokens)
    prefill, unchanged = sum(flops.values()), sum(prefill_flops(arch, None, tokens).values())
    bytes_per_token = {dtype: kv_bytes_per_token(arch, spec, dtype) for dtype in KV_DTYPE_BYTES}
    baseline_bytes = kv_bytes_per_token(arch, None)
    reductions = (
        None
        if spec is None
        else {
            **vars(spec),
            "prefill_reduction": spec.prefill_reduction,
            "kv_cache_reduction": spec.kv_cache_reduction(arch.num_key_value_heads),
        }
    )
    return {
        "spec": reductions,
        "flops_per_prefill_token": {operation: count / tokens for operation, count in flops.items()},
        "total_flops_per_prefill_token": prefill / tokens,
        "relative_flops": prefill / unchanged,
        "published_gflops": published_gflops(arch, spec, tokens),
        "kv_bytes_per_token": bytes_per_token,
        "limits": {
            **speedup_limits(arch, spec, tokens, output),
            # Tokens that fit into a given cache, relative to the baseline with bfloat16.
            "kv_capacity": {dtype: baseline_bytes / size for dtype, size in bytes_per_token.items()},
        },
    }


def _check(arch: Dimensions, spec: SwiftKVSpec | None) -> None:
    if spec is not None and spec.num_hidden_layers != arch.num_hidden_layers:
        raise ValueError(f"it is for {spec.num_hidden_layers} layers, but the model has {arch.num_hidden_layers}")
    if spec is not None:
        check_latent_heads(isinstance(arch, LatentDimensions), spec.num_key_value_heads)
