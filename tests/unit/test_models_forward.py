"""SwiftKV forward: equal to the teacher, to the equations, with a cache, and in packed rows."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import randomise_biases
from torch.nn.functional import silu
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swiftkv.errors import UserError
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

L = 6
# (l, g, KV heads): one group a layer, a ragged last group, one group of all, and C.1's heads.
REWIRINGS = [(3, 1, None), (2, 3, None), (1, 5, None), (2, 2, 2), (2, 4, 8)]


def reference_logits(model, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, vocabulary] straight from the equations, on the weights by name, in float64."""
    w = {name: tensor.double() for name, tensor in model.state_dict().items()}
    config, spec = model.config, model.spec
    size = config.hidden_size // config.num_attention_heads
    length = tokens.shape[1]
    angles = torch.arange(length).double()[:, None] * 10000.0 ** (-torch.arange(0, size, 2).double() / size)
    causal = torch.ones(length, length, dtype=torch.bool).tril()

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * w[name + ".weight"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def heads(x):
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    def normed(x, name):  # by head, in Qwen3
        return norm(x, name) if f"{name}.weight" in w else x

    def rope(x):
        first, second = x.chunk(2, -1)
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
        )

    h = w["model.embed_tokens.weight"][tokens]
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        upper = i >= spec.num_key_value_layers
        if i == spec.num_key_value_layers:
            s = norm(h, "model.norm_swiftkv")
        x = norm(h, layer + "input_layernorm")
        suffix = "_swiftkv" if upper else ""
        if not upper or i in spec.owners:
            k = heads(linear(s if upper else x, f"{layer}self_attn.k_proj{suffix}"))
            k = rope(normed(k, f"{layer}self_attn.k_norm{suffix}"))
            v = heads(linear(s if upper else x, f"{layer}self_attn.v_proj{suffix}"))
        q = heads(linear(x, f"{layer}self_attn.q_proj{suffix}"))
        q = rope(normed(q, f"{layer}self_attn.q_norm{suffix}"))
        copies = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(copies, 1).mT / size**0.5
        attended = scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v.repeat_interleave(copies, 1)
        h = h + linear(attended.transpose(1, 2).flatten(2), layer + "self_attn.o_proj")
        x = norm(h, layer + "post_attention_layernorm")
        h = h + linear(
            silu(linear(x, layer + "mlp.gate_proj")) * linear(x, layer + "mlp.up_proj"), layer + "mlp.down_proj"
        )
    return norm(h, "model.norm") @ w["lm_head.weight"].T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_all_layers_ordinary_is_the_teacher_bit_for_bit(architecture, dtype, tiny_teacher, tokens):
    teacher = tiny_teacher(architecture, dtype)
    model = rewire(teacher, SwiftKVSpec(L, L))
    assert model.config.swiftkv and not model.swiftkv_parameters()
    assert torch.equal(model(tokens).logits, teacher(tokens).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_teacher_mode_is_the_teacher_bit_for_bit(architecture, dtype, tiny_teacher, tiny_swiftkv, tokens):
    for heads in (None, 2):
        model = tiny_swiftkv(architecture, 2, 3, heads, dtype=dtype)
        teacher = tiny_teacher(architecture, dtype)
        student = model(tokens).logits
        model.config.swiftkv = False
        assert torch.equal(model(tokens).logits, teacher(tokens).logits)
        assert torch.equal(model.generate(tokens, max_new_tokens=6), teacher.generate(tokens, max_new_tokens=6))
        model.config.swiftkv = True
        assert torch.equal(model(tokens).logits, student)
        assert not torch.allclose(student, teacher(tokens).logits, atol=1e-2)


@pytest.mark.parametrize(("layers", "group", "heads"), REWIRINGS)
@torch.no_grad()
def test_equations(grouped_query, layers, group, heads, tiny_swiftkv, tokens):
    model = tiny_swiftkv(grouped_query, layers, group, heads)
    torch.testing.assert_close(model(tokens).logits.double(), reference_logits(model, tokens), atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_equations_with_biases(tiny_swiftkv, tokens):
    qwen2 = tiny_swiftkv("qwen2", 2, 3)
    randomise_biases(qwen2)
    llama = tiny_swiftkv("llama", 2, 3, attention_bias=True)
    for model in (qwen2, llama):
        torch.testing.assert_close(model(tokens).logits.double(), reference_logits(model, tokens), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(("layers", "group", "heads"), REWIRINGS)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(architecture, layers, group, heads, tiny_swiftkv, tokens):
    model = tiny_swiftkv(architecture, layers, group, heads)
    full = model(tokens, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    pieces = [
        model(piece, past_key_values=cache, use_cache=True).logits for piece in tokens.split([9, 7, 1, 1, 1, 5], 1)
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), full, atol=2e-5, rtol=1e-5)
    kept = [index for index, layer in enumerate(cache.layers) if layer.get_seq_length()]
    assert kept == [*range(layers), *model.spec.owners]  # one cache a group


@pytest.mark.parametrize("student", [True, False])
def test_generate_with_and_without_cache(architecture, student, tiny_swiftkv, tokens):
    model = tiny_swiftkv(architecture, 2, 3)
    model.config.swiftkv = student
    cached, plain = (
        model.generate(tokens, max_new_tokens=10, do_sample=False, num_beams=2, use_cache=use_cache)
        for use_cache in (True, False)
    )
    assert cached.shape[1] > tokens.shape[1] and torch.equal(cached, plain)


def test_generate_with_left_padding(architecture, tiny_swiftkv, tokens):
    model = tiny_swiftkv(architecture, 2, 3)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), tokens[:1]], 1)
    mask = (padded != 0).long()
    rows = torch.cat([padded, torch.cat([tokens[1:], tokens[1:, :5]], 1)])
    masks = torch.cat([mask, torch.ones_like(mask)])
    together = model.generate(rows, attention_mask=masks, max_new_tokens=6, do_sample=False)
    alone = model.generate(tokens[:1], max_new_tokens=6, do_sample=False)
    assert torch.equal(together[0, 5 : 5 + alone.shape[1]], alone[0])


MIXED = dict(use_sliding_window=True, sliding_window=6, max_window_layers=4)


@pytest.mark.parametrize(
    ("architecture", "group", "window"), [("mistral", 3, {"sliding_window": 6}), ("qwen2", 2, MIXED)]
)
@torch.no_grad()
def test_sliding_windows(architecture, group, window, tiny_swiftkv, tokens):
    wide = tiny_swiftkv(architecture, 2, group)(tokens).logits
    model = tiny_swiftkv(architecture, 2, group, **window)
    full = model(tokens, use_cache=False).logits
    torch.testing.assert_close(full[:, :6], wide[:, :6])
    assert not torch.allclose(full[:, 8:], wide[:, 8:], atol=1e-2)
    cache = DynamicCache(config=model.config)
    pieces = [model(piece, past_key_values=cache, use_cache=True).logits for piece in tokens.split([9, 1, 1, 8, 5], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, atol=2e-5, rtol=1e-5)


def test_layers_with_and_without_a_window_share_no_keys(tiny_swiftkv):
    with pytest.raises(UserError, match="layers 2 to 4"):
        tiny_swiftkv("qwen2", 2, 3, **MIXED)


@pytest.mark.parametrize("student", [True, False])
@torch.no_grad()
def test_packing_does_not_leak(architecture, student, tiny_swiftkv, tokens):
    decoder = tiny_swiftkv(architecture, 2, 3).model
    lengths = (10, 14)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(2, -1)

    def run(rows):
        return decoder.forward_upper(decoder.forward_lower(rows, positions), student)[0]

    packed = run(tokens)
    perturbed = tokens.clone()
    perturbed[:, :10] = (perturbed[:, :10] + 1) % 128
    # Experts compute the tokens of all samples together, so other neighbors may change how their sums are rounded.
    bound = dict(atol=2e-5, rtol=1e-5) if architecture == "deepseek_v2" else dict(atol=0, rtol=0)
    torch.testing.assert_close(run(perturbed)[:, 10:], packed[:, 10:], **bound)
    assert not torch.allclose(run(perturbed)[:, :10], packed[:, :10], atol=1e-2)
    decoder.config.swiftkv = student
    for start, stop in ((0, 10), (10, 24)):
        alone = decoder(tokens[:, start:stop], use_cache=False).last_hidden_state
        torch.testing.assert_close(packed[:, start:stop], alone, atol=2e-5, rtol=1e-5)


@pytest.fixture
def attention_calls():
    """Calls of the attention registered as "spy": (layer, query rows, KV heads, keys)."""
    calls = []

    def spy(module, query, key, value, mask, **kwargs):
        calls.append((module.layer_idx, query.shape[2], key.shape[1], key.shape[2]))
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register("spy", spy)
    AttentionMaskInterface.register("spy", sdpa_mask)
    return calls


@pytest.mark.parametrize("padding", [0, 5])
@torch.no_grad()
def test_prefill_stops_at_layer_l(architecture, padding, tiny_swiftkv, tokens, attention_calls):
    model = tiny_swiftkv(architecture, 2, 3, sliding_window=9 if architecture == "mistral" else None)
    mask = torch.ones_like(tokens)
    mask[0, :padding] = 0
    model.set_attn_implementation("spy")
    full, prefill = (model(tokens, attention_mask=mask, use_cache=True, logits_to_keep=keep) for keep in (0, 1))
    assert [rows for _, rows, _, _ in attention_calls] == [24] * (L + 2) + [1] * 4
    assert all(keys == 24 for *_, keys in attention_calls)
    torch.testing.assert_close(prefill.logits, full.logits[:, -1:], atol=2e-5, rtol=1e-5)
    for ours, theirs in zip(prefill.past_key_values.layers, full.past_key_values.layers, strict=True):
        assert ours.get_seq_length() == theirs.get_seq_length()
        if ours.get_seq_length():
            assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    hidden = model(tokens, logits_to_keep=1, output_hidden_states=True).hidden_states
    assert all(states.shape[1] == 24 for states in hidden)
    model.config.swiftkv = False
    attention_calls.clear()
    model(tokens, logits_to_keep=1)
    assert all(rows == 24 for _, rows, _, _ in attention_calls)
