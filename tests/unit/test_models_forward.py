"""SwiftKV forward: equal to the teacher, to the equations, with a cache, and with answers that keep their own."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.conftest import LATENT, in_pieces, random_ids, randomise_biases, refused, tiny_swiftkv, tiny_teacher
from torch.testing import assert_close
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swiftkv.models import rewire
from swiftkv.models.attention import each_table
from swiftkv.spec import SwiftKVSpec

L = 6
ROUNDING = dict(atol=2e-5, rtol=1e-5)  # of sums in another order
# (l, g, KV heads): one group a layer, a ragged last group, one group of all, and C.1's heads.
REWIRINGS = [(3, 1, None), (2, 3, None), (1, 5, 2), (2, 4, 8)]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


# Projections that another model of the architecture has.
OTHERS = {"llama": {"attention_bias": True}, "deepseek_v2": {"attention_bias": True, "q_lora_rank": 20}}


def as_equations(student, teacher):
    """The teacher, an ordinary model of transformers, with the student's projections in its layers >= l.

    Hooks give those of keys and values s = norm_swiftkv(h_l), as the paper's equations have it.
    """
    spec, weights, entering = student.spec, student.state_dict(), []
    teacher.load_state_dict({name: weights[name] for name in teacher.state_dict()})

    def note(_, inputs):
        entering[:] = [student.model.norm_swiftkv(inputs[0])]

    teacher.model.layers[spec.num_key_value_layers].register_forward_pre_hook(note)
    for index in range(spec.num_key_value_layers, L):
        attention, own = (model.model.layers[index].self_attn for model in (teacher, student))
        owner = student.model.layers[spec.owner(index)].self_attn
        for source, names in ((own, own.query_projections), (owner, own.key_value_projections)):
            for name in names:
                if getattr(attention, name, None) is not None:
                    setattr(attention, name, copy.deepcopy(getattr(source, f"{name}_swiftkv")))
        for name in ("k_proj", "v_proj", "kv_a_proj_with_mqa"):
            if hasattr(attention, name):
                getattr(attention, name).register_forward_pre_hook(lambda *_: entering[0])
        if hasattr(attention, "k_proj"):
            attention.num_key_value_groups = attention.q_proj.out_features // attention.k_proj.out_features
    return teacher


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_the_teacher_is_it_bit_for_bit(architecture, dtype, tokens):
    """A model of ordinary layers, one rewired from its last layer on before training, and a student in teacher mode."""
    teacher = tiny_teacher(architecture, dtype)
    expected, generated = teacher(tokens).logits, teacher.generate(tokens, max_new_tokens=6)
    for ordinary in (L, L - 1):
        model = rewire(teacher, SwiftKVSpec(L, ordinary))
        assert model.config.swiftkv and torch.equal(model(tokens).logits, expected)
    for heads in (None, 2):
        model = tiny_swiftkv(architecture, 2, 3, heads, dtype=dtype)
        student = model(tokens).logits
        assert not torch.allclose(student, expected, atol=1e-2)
        model.config.swiftkv = False
        assert torch.equal(model(tokens).logits, expected)
        assert torch.equal(model.generate(tokens, max_new_tokens=6), generated)
        model.config.swiftkv = True
        assert torch.equal(model(tokens).logits, student)


@pytest.mark.parametrize("layers, group, heads", REWIRINGS)
@pytest.mark.parametrize("other", [False, True])
def test_equations(architecture, layers, group, heads, other, tokens):
    changes = OTHERS.get(architecture, {}) if other else {}
    model = tiny_swiftkv(architecture, layers, group, heads, **changes)
    randomise_biases(model)
    expected = as_equations(model, tiny_teacher(architecture, **changes))(tokens).logits
    assert_close(model(tokens).logits, expected, **ROUNDING)


@pytest.mark.parametrize("layers, group, heads", REWIRINGS)
def test_cached_decoding_equals_the_full_forward(architecture, layers, group, heads, tokens):
    model = tiny_swiftkv(architecture, layers, group, heads)
    full = model(tokens, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    assert_close(in_pieces(model, tokens, [9, 7, 1, 1, 1, 5], cache), full, **ROUNDING)
    kept = {index: layer for index, layer in enumerate(cache.layers) if layer.get_seq_length()}
    assert list(kept) == [*range(layers), *model.spec.owners]  # one cache a group
    if architecture == "deepseek_v2":
        sizes = {(*layer.keys.shape, layer.values.shape[-1]) for layer in kept.values()}
        assert sizes == {(2, 1, 24, LATENT["kv_lora_rank"], LATENT["qk_rope_head_dim"])}


@pytest.mark.parametrize("group", [2, 3])
def test_generate_with_and_without_cache(architecture, group, tokens):
    """By beams, and with drafts from a prompt of repetitions, of which the cache gives up the refused ones."""
    model = tiny_swiftkv(architecture, 2, group)
    for prompt, beams, drafts in ((tokens, 2, None), (tokens[:1].repeat(1, 2), 1, 3)):
        arguments = {"max_new_tokens": 10, "do_sample": False, "num_beams": beams}
        cached = model.generate(prompt, prompt_lookup_num_tokens=drafts, **arguments)
        plain = model.generate(prompt, use_cache=False, **arguments)
        assert cached.shape[1] > prompt.shape[1] and torch.equal(cached, plain)


MIXED = dict(use_sliding_window=True, sliding_window=6, max_window_layers=4)


@pytest.mark.parametrize("architecture, group, window", [("mistral", 3, {"sliding_window": 6}), ("qwen2", 2, MIXED)])
def test_sliding_windows(architecture, group, window, tokens):
    wide = tiny_swiftkv(architecture, 2, group)(tokens).logits
    model = tiny_swiftkv(architecture, 2, group, **window)
    full = model(tokens, use_cache=False).logits
    assert_close(full[:, :6], wide[:, :6])
    assert not torch.allclose(full[:, 8:], wide[:, 8:], atol=1e-2)
    cache = DynamicCache(config=model.config)
    assert_close(in_pieces(model, tokens, [9, 1, 1, 8, 5], cache), full, **ROUNDING)
    with refused("layers 2 to 4"):  # with and without a window, they share no keys
        tiny_swiftkv("qwen2", 2, 3, **MIXED)


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
def test_prefill_stops_at_layer_l(architecture, padding, tokens, attention_calls):
    model = tiny_swiftkv(architecture, 2, 3, sliding_window=9 if architecture == "mistral" else None)
    mask = torch.ones_like(tokens)
    mask[0, :padding] = 0
    model.set_attn_implementation("spy")
    full, prefill = (model(tokens, attention_mask=mask, use_cache=True, logits_to_keep=keep) for keep in (0, 1))
    assert [rows for _, rows, _, _ in attention_calls] == [24] * (L + 2) + [1] * 4
    assert all(keys == 24 for *_, keys in attention_calls)
    assert_close(prefill.logits, full.logits[:, -1:], **ROUNDING)
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


CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PROMPT, TOKENS = 15, 24


@pytest.fixture(scope="module")
def ids():
    return random_ids(1, TOKENS)


def cut(state, part):
    """The state of some positions, which see all that is in its cache and those before them."""
    hidden, layers = state.hidden[:, part], state.past_key_values.layers
    held = layers[-1].get_seq_length() if layers else 0
    seen = torch.ones(hidden.shape[1], held + hidden.shape[1], dtype=torch.bool).tril(held)
    return replace(
        state,
        hidden=hidden,
        position_ids=state.position_ids[:, part],
        position_embeddings=each_table(state.position_embeddings, lambda table: table[:, part]),
        attention_mask=dict.fromkeys(state.attention_mask, seen[None, None]),
    )


def by_parts(shared, ids):
    """Logits of an answer that the teacher's layers compute over SingleInputKV's keys and values of the prompt."""
    decoder, cache = shared.model, DynamicCache()
    state = replace(decoder.forward_lower(ids), past_key_values=cache)
    decoder.fill_upper_cache(cut(state, slice(0, PROMPT - 1)))
    return shared.lm_head(decoder.forward_upper(cut(state, slice(PROMPT - 1, None)), student=False)[0][0])


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "deepseek_v2"])
def test_one_pass_equals_generation_and_its_parts(architecture, ids):
    teacher = tiny_teacher(architecture).eval()
    own = rewire(teacher, SwiftKVSpec(6, 2, own_key_values=True)).eval()
    shared = rewire(teacher, SwiftKVSpec(6, 2)).eval()
    expected = by_parts(shared, ids)
    assert (shared(ids).logits[0, PROMPT - 1 :] - expected).abs().max() > 1e-3
    answering = torch.arange(TOKENS)[None] >= PROMPT - 1
    assert_close(own(ids, full_depth=answering).logits[0, PROMPT - 1 :], expected, **CLOSE)
    cache = DynamicCache(config=own.config)
    parts = [ids[:, :PROMPT], *ids[:, PROMPT:].split(1, dim=1)]
    rows = [own(part, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1] for part in parts]
    assert_close(torch.stack(rows), expected, **CLOSE)
    # A model that runs all layers for every token is the teacher. Nothing is made on another device than its own.
    with torch.device("meta"):
        assert_close(own(ids).logits, teacher(ids).logits, **CLOSE)
    with pytest.raises(ValueError, match="say which tokens run all layers"):
        own.model(ids)
