"""Fitted start values: exact moments, the regressions, and how AcrossKV groups combine them."""

import pytest
import torch
from tests.conftest import random_ids, randomise_biases, refused, tiny_teacher
from tests.unit.distill_helpers import RECIPE, command, losses, run, train
from torch.testing import assert_close

from swiftkv.distill import attention
from swiftkv.distill import teacher as distill_teacher
from swiftkv.distill.fit import fitted_values, shared_keys, turn_queries
from swiftkv.distill.moments import FINAL, Moments, MomentSums, received_attention, regression
from swiftkv.distill.packing import PackedRows
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.teacher import Teacher, write_moments
from swiftkv.models import rewire
from swiftkv.models.attention import rotate
from swiftkv.models.early_exit import early_logits
from swiftkv.spec import SwiftKVSpec
from swiftkv.tensor_file import save

L = 6
FITTED = {"start": "fitted"}


@pytest.fixture(scope="module")
def inputs(inputs):
    """With the moments for every l in moments.safetensors."""
    files = [inputs / f"{name}.safetensors" for name in ("packed", "moments")]
    write_moments(inputs / "model", files[0], Recipe.from_dict(RECIPE), [1, 2, 3, 4, 5], files[1])
    return inputs


def gathered(architecture="llama", layers=(2,), seed=0, change=None, **shape):
    """A teacher, its hidden states on random tokens, and the sums of their moments."""
    teacher = tiny_teacher(architecture, **shape)
    if change:
        change(teacher)
    tokens = random_ids(8, 64, seed=seed)
    model = rewire(teacher, SwiftKVSpec(L, min(layers)))
    with torch.no_grad():
        state = model.model.forward_lower(tokens)
        final, inner = model.model.forward_upper(state, student=False, collect_hidden=True)
    hidden = dict(enumerate(inner, min(layers))) | {FINAL: final}
    sums = MomentSums(model.model, list(layers))
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    sums.add(hidden, torch.ones(tokens.shape, dtype=torch.bool), positions)
    return teacher, hidden, sums


def read(sums, tmp_path, layer, ridge=1e-9):
    save(tmp_path / "moments.safetensors", sums.fits(ridge), {})
    return Moments.read(tmp_path / "moments.safetensors", layer)


def project(attention, states, suffix=""):
    """Keys before RoPE and values, or latents, [tokens, widths]."""
    names = ("k_proj", "v_proj") if hasattr(attention, "k_proj") else ("kv_a_proj_with_mqa",)
    return torch.cat([getattr(attention, name + suffix)(states) for name in names], dim=-1).flatten(0, -2)


def teacher_key_value(teacher, hidden, layer):
    block = teacher.model.layers[layer]
    return project(block.self_attn, block.input_layernorm(hidden[layer]))


def test_a_teacher_over_several_gpus_has_no_mask_that_stays_on_the_first(inputs, monkeypatch):
    """FlexAttention's block mask, moved to a layer's device, keeps the samples on the first one; sdpa's goes as a whole."""

    def teacher(gpus):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        made = Teacher(inputs / "model", inputs / "packed.safetensors", Recipe.from_dict(RECIPE), [2])
        return made.attention, next(made.run([0]))[1]

    def choose(recipe, _=None):
        return attention.FLEX if recipe.attention == "auto" else recipe.attention

    one, expected = teacher(1)
    load = distill_teacher.load_base
    monkeypatch.setattr(distill_teacher, "load_base", lambda *given, device_map, **more: load(*given, **more))
    for module in (attention, distill_teacher):
        monkeypatch.setattr(module, "choose_kernel", choose)
    name, found = teacher(2)
    assert (one, name) == (attention.PACKED, attention.MASKED)
    for layer, hidden in found.items():
        assert_close(hidden, expected[layer], rtol=1e-4, atol=1e-5)


def test_sums_are_those_of_the_text(inputs):
    """Against sums written out in float64, over exactly the tokens that are no padding."""
    rows = PackedRows(inputs / "packed.safetensors")
    batch = rows[list(range(rows.rows))]
    teacher = Teacher(inputs / "model", inputs / "packed.safetensors", Recipe.from_dict(RECIPE), [2])
    starts = teacher.starts(Recipe.from_dict(RECIPE).start_tokens)
    found = MomentSums(teacher.model.model, [2])
    covariance, gram, cross, energy, final = 0, 0, 0, 0, 0
    for _, hidden, (text, positions) in teacher.run(starts):
        found.add(hidden, text, positions)
        decoder = teacher.model.model
        block = decoder.layers[2]
        states = block.input_layernorm(hidden[2])[text].double()
        weight = received_attention(decoder, 4, hidden[4], positions)[text].double()[:, None]
        target = teacher_key_value(teacher.model, {4: hidden[4][text][None]}, 4).double()
        queries = block.self_attn.q_proj(block.input_layernorm(hidden[2])[text]).double().unflatten(1, (8, 2, 4))
        covariance = covariance + states.T @ states
        gram, cross = gram + states.T @ (weight * states), cross + states.T @ (weight * target)
        energy = energy + queries.square().sum((0, 2))
        final = final + states.T @ hidden[FINAL][text].double()
    assert found.tokens == int(batch["loss_mask"].sum())
    assert sorted(found.cross) == [(2, 2), (2, 3), (2, 4), (2, 5)]
    pairs = [(found.covariance[2], covariance), (found.gram[2, 4], gram), (found.cross[2, 4], cross)]
    for sums, expected in [*pairs, (found.energy[2], energy), (found.final[2], final)]:
        assert_close(sums, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "architecture, changes", [("llama", {}), ("mistral", {"sliding_window": 6}), ("deepseek_v2", {})]
)
def test_tokens_weigh_what_transformers_says_they_receive(architecture, changes, monkeypatch):
    """Against the attention weights that transformers' eager attention returns, sample by sample of a packed row."""
    monkeypatch.setattr("swiftkv.distill.moments.WEIGHTS", 100)  # queries in parts
    teacher = tiny_teacher(architecture, **changes)
    teacher.set_attn_implementation("eager")
    samples = [random_ids(1, n, seed=n) for n in (5, 24, 11)]
    expected, hidden = [], []
    for sample in samples:
        out = teacher(sample, output_attentions=True, output_hidden_states=True)
        expected.append(out.attentions[3][0].square().mean(0).sum(0))
        hidden.append(out.hidden_states[3])
    decoder = rewire(teacher, SwiftKVSpec(L, 2)).model
    positions = torch.cat([torch.arange(sample.shape[1]) for sample in samples])[None]
    found = received_attention(decoder, 3, torch.cat(hidden, dim=1), positions)
    assert_close(found[0], torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "deepseek_v2"])
def test_a_fit_finds_the_layer_s_own_projections_and_improves_the_others(architecture, tmp_path):
    """At layer l the teacher's keys are a linear map of s, so the fit is that map; above, it beats the copied weights."""
    teacher, hidden, sums = gathered(architecture, change=randomise_biases)
    spec, found = SwiftKVSpec(L, 2), read(sums, tmp_path, 2)
    fitted = rewire(teacher, spec, fitted_values(teacher, spec, found)).model
    copied = rewire(teacher, spec).model
    states = copied.norm_swiftkv(hidden[2])
    own = fitted.layers[2].self_attn
    assert_close(project(own, states, "_swiftkv"), project(own, states), rtol=1e-3, atol=1e-2)
    for layer in (3, 4, 5):
        target = teacher_key_value(teacher, hidden, layer)
        errors = [
            (project(model.layers[layer].self_attn, states, "_swiftkv") - target).square().mean()
            for model in (fitted, copied)
        ]
        assert errors[0] < 0.7 * errors[1], layer
    replaced = ("k_proj_swiftkv", "v_proj_swiftkv", "kv_a_proj_with_mqa_swiftkv")
    for name, value in fitted.state_dict().items():
        assert name.split(".")[-2] in replaced or torch.equal(value, copied.state_dict()[name]), name


def test_an_early_exit_head_is_the_teacher_where_the_layers_above_do_nothing(tmp_path):
    """The final states are then a linear map of s, so the fit is that map and the two heads' logits are the same."""

    def idle(teacher):
        for layer in teacher.model.layers[2:]:
            layer.self_attn.o_proj.weight.data.mul_(1e-5)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
        randomise_biases(teacher)

    teacher, hidden, sums = gathered("qwen2", change=idle)
    spec = SwiftKVSpec(L, 2, early_exit=True)
    model = rewire(teacher, spec, fitted_values(teacher, spec, read(sums, tmp_path, 2)))
    expected = teacher.lm_head(hidden[FINAL])
    assert_close(early_logits(model, hidden[2]), expected, rtol=1e-3, atol=1e-3)
    copied = early_logits(rewire(teacher, spec), hidden[2])
    assert (copied - expected).abs().max() > 0.5


def test_keys_that_differ_by_rotations_are_shared_without_loss():
    """Complex multiples of one projection: scores under RoPE stay what they were, for every layer of the group."""
    generator = torch.Generator().manual_seed(0)
    shared, half, features, heads = 2, 3, 5, 4
    base = torch.randn(shared, half, features, dtype=torch.complex128, generator=generator)
    factor = torch.randn(3, shared, half, dtype=torch.complex128, generator=generator)
    keys = factor[..., None] * base
    keys = torch.stack([keys.real, keys.imag], dim=2).flatten(1, 3)
    inputs = torch.randn(7, features, dtype=torch.float64, generator=generator)
    energy = torch.rand(3, shared, half, dtype=torch.float64, generator=generator) + 0.1
    one, factors = shared_keys(keys, inputs.T @ inputs, energy)
    queries = torch.randn(heads * 2 * half, 9, dtype=torch.float64, generator=generator)
    for layer in range(3):
        before = scores(queries, keys[layer], inputs, shared)
        after = scores(turn_queries(queries, factors[layer]), one, inputs, shared)
        assert_close(after, before, rtol=1e-9, atol=1e-9)


def scores(query, key, inputs, shared):
    """Attention scores of some queries (position 11) with keys at positions 0..6, rotated as in the models."""
    key = (inputs @ key.T).unflatten(1, (shared, -1))
    query = query.T.unflatten(1, (-1, key.shape[-1]))
    angle = torch.cat([1.0 / 10.0 ** torch.arange(key.shape[-1] // 2, dtype=torch.float64)] * 2)

    def turn(states, positions):
        angles = positions[:, None] * angle
        return rotate(states[None], (angles.cos()[None], angles.sin()[None]))[0]

    key = turn(key, torch.arange(7.0)).repeat_interleave(query.shape[1] // shared, dim=1)
    return torch.einsum("qhd,khd->hqk", turn(query, torch.full((9,), 11.0)), key)


def test_what_cannot_be_fitted_is_one_sentence():
    _, _, sums = gathered()
    with refused("do not determine a fit"):
        regression(torch.ones(3, 3, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64), 0.0, 2)
    sums.tokens = 40
    with refused("40 tokens"):
        sums.fits(1e-4)


def test_training_starts_from_the_fit_and_needs_its_moments(inputs, finished, tmp_path):
    train(inputs, tmp_path, recipe=FITTED, moments=True)
    assert losses(tmp_path)[0] < 0.9 * losses(finished)[0]
    for changes, moments, said in (
        ({}, False, "no file with moments"),
        ({"dtype": "bfloat16"}, True, "another dtype"),
        ({"start_tokens": 2000}, True, "another start_tokens"),
    ):
        done = run(command(inputs, tmp_path, recipe=FITTED | changes, moments=moments))
        assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
