"""The early exit head: in checkpoints, and in decoding that skips layers and leaves a whole cache."""

import pytest
import torch
from tests.conftest import refused, tiny_teacher
from transformers.cache_utils import DynamicCache

from swiftkv.models import early_exit, rewire
from swiftkv.models.early_exit import decode, early_logits
from swiftkv.spec import SwiftKVSpec

PROMPT = [3, 9, 27, 81, 12, 36]


def exiting(architecture="llama", group=1, heads=None, **changes):
    """A rewired tiny model whose two heads agree with each other about as often as not, at all kinds of confidence."""
    teacher = tiny_teacher(architecture, eos_token_id=None, **changes)
    spec = SwiftKVSpec(6, 3, group, heads, early_exit=True)
    model = rewire(teacher, spec)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.swiftkv_parameters().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
        model.early_exit_head_swiftkv.weight.mul_(3)
    return model


def middle(model):
    """A threshold that half of the tokens exit at: the early exit head's largest probability, its median."""
    tokens = PROMPT + decode(model, PROMPT, 40, None).tokens
    hidden = model.model.forward_lower(torch.tensor([tokens])).hidden
    return early_logits(model, hidden)[0].float().softmax(-1).amax(-1)[len(PROMPT) :].median().item()


@pytest.mark.parametrize("threshold", [None, 1.001])
def test_above_one_it_is_full_decoding(architecture, threshold):
    model = exiting(architecture, 2)
    found = decode(model, PROMPT, 40, threshold)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)[0, len(PROMPT) :]
    assert found.tokens == expected.tolist() and len(found.tokens) == 40
    assert not any(found.exited)


@pytest.mark.parametrize("group, heads, dtype", [(2, None, torch.float32), (3, 2, torch.bfloat16)])
def test_an_exited_token_leaves_the_cache_of_full_depth(architecture, group, heads, dtype, monkeypatch):
    """Bit for bit, in every layer, whatever mixture of tokens exits."""
    heads = None if architecture == "deepseek_v2" else heads  # latent attention has none
    model = exiting(architecture, group, heads, dtype=dtype)
    threshold = middle(model)
    ours, full = (DynamicCache(config=model.config) for _ in range(2))
    monkeypatch.setattr(early_exit, "DynamicCache", lambda config: ours)
    found = decode(model, PROMPT, 40, threshold)
    assert 5 < sum(found.exited) < 39  # a mixture indeed
    with torch.inference_mode():
        for part in (PROMPT, *([token] for token in found.tokens[:-1])):
            model(torch.tensor([part]), past_key_values=full, use_cache=True, logits_to_keep=1)
    mine, other = ([layer for layer in cache.layers if layer.is_initialized] for cache in (ours, full))
    assert len(mine) == 3 + len(model.spec.owners)
    for one, same in zip(mine, other, strict=True):
        assert torch.equal(one.keys, same.keys) and torch.equal(one.values, same.values)


def test_every_token_is_the_one_its_head_predicts():
    model = exiting()
    threshold = middle(model)
    found = decode(model, PROMPT, 40, threshold)
    with torch.no_grad():
        row = torch.tensor([PROMPT + found.tokens])
        early = early_logits(model, model.model.forward_lower(row).hidden)[0].float().softmax(-1)
        final = model(row).logits[0]
    for number, (token, exited) in enumerate(zip(found.tokens, found.exited, strict=True)):
        position = len(PROMPT) + number - 1
        assert token == (early if exited else final)[position].argmax()
        assert number == 0 or exited == (early[position].amax().item() > threshold)
    assert not found.exited[0] and any(found.exited) and not all(found.exited[1:])


def test_layers_above_l_do_not_run_for_an_exited_token():
    model, ran = exiting(), []
    for number, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    assert decode(model, PROMPT, 5, 0.0).exited == [False, True, True, True, True]
    assert ran == [0, 1, 2, 3, 4, 5] + 4 * [0, 1, 2]


def test_it_stops_at_the_end_of_the_sequence():
    model, threshold = exiting(), 0.0
    tokens = decode(model, PROMPT, 12, threshold).tokens
    stop = next(number for number in range(2, 12) if tokens[number] not in tokens[:number])
    for ends in (tokens[stop], [tokens[stop], 0]):
        model.generation_config.eos_token_id = ends
        assert decode(model, PROMPT, 12, threshold).tokens == tokens[: stop + 1]
    assert len(decode(model, PROMPT, 1, threshold).tokens) == 1


def test_the_head_starts_as_the_other_one_and_is_its_own():
    teacher = tiny_teacher()  # whose embeddings are tied
    model, plain = (rewire(teacher, SwiftKVSpec(6, 3, early_exit=has)) for has in (True, False))
    assert torch.equal(model.early_exit_head_swiftkv.weight, teacher.lm_head.weight)
    assert model.early_exit_head_swiftkv.weight is not model.lm_head.weight is teacher.lm_head.weight
    assert set(model.swiftkv_parameters()) - set(plain.swiftkv_parameters()) == {"early_exit_head_swiftkv.weight"}
    # Without it a model cannot exit.
    assert len(decode(plain, PROMPT, 3, None).tokens) == 3
    for without in (plain, teacher):
        with refused("has no early exit head"):
            decode(without, PROMPT, 3, 0.95)
