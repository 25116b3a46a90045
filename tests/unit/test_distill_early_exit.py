"""Training of the early exit head: the same loss on the input of SingleInputKV, summed."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import tiny_teacher
from tests.unit.distill_helpers import RECIPE, SPEC, log, train

from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import DistillationStep, lower_state, next_tokens
from swiftkv.models import load_swiftkv
from swiftkv.spec import SwiftKVSpec

EXIT = SPEC | {"early_exit": True}
HEAD = "early_exit_head_swiftkv.weight"


def batch():
    """One row of two samples and one of one, all positions counted."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 128, (2, 20), generator=generator)
    positions = torch.stack([torch.tensor([*range(12), *range(8)]), torch.arange(20)])
    return ids, positions, torch.rand(2, 20, generator=generator)


def step(base=None, **changes):
    return DistillationStep(base or tiny_teacher(), SwiftKVSpec(**EXIT), Recipe.from_dict(RECIPE | changes))


@torch.no_grad()
def move_head(made):
    """Away from its start, as after some training."""
    noise = torch.randn(made.student.early_exit_head_swiftkv.weight.shape, generator=torch.Generator().manual_seed(1))
    made.student.early_exit_head_swiftkv.weight.add_(0.1 * noise)


@pytest.mark.parametrize("loss", ["distillation", "lm"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_two_losses_are_summed(architecture, loss):
    """As written out with whole logits; the gradients too, of the head, the norm and the projections."""
    made = step(tiny_teacher(architecture), loss=loss)
    move_head(made)
    ids, positions, weights = batch()
    total, parts = made(ids, positions, weights)
    assert total.item() == pytest.approx((parts[0] + parts[2]).item(), rel=1e-6) and parts[1] == 0 < parts[2]
    total.backward()
    ours = {name: p.grad.clone() for name, p in made.student.swiftkv_parameters().items()}
    assert all(gradient.any() for gradient in ours.values())
    made.zero_grad()
    made.student.set_attn_implementation("sdpa")
    decoder, flat = made.student.model, weights.flatten()
    state = decoder.forward_lower(ids, positions)
    with torch.no_grad():
        teacher = tiny_teacher(architecture)(ids, position_ids=positions, use_cache=False).logits / 2
    expected = 0
    for logits in (
        made.student.lm_head(decoder.forward_upper(state, student=True)[0]),
        made.student.early_exit_head_swiftkv(decoder.norm_swiftkv(state.hidden)),
    ):
        if loss == "lm":
            targets, has_target = next_tokens(ids, positions)
            terms = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none") * has_target
        else:
            log_s, log_t = (logits / 2).log_softmax(-1), teacher.log_softmax(-1)
            terms = 4 * (log_t.exp() * (log_t - log_s)).sum(-1).flatten()
        expected = expected + (terms * flat).sum()
    expected.backward()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)
    for name, parameter in made.student.swiftkv_parameters().items():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("change", [{"train_norm": False}, {"train": "upper_layers"}, {"gradient_checkpointing": True}])
def test_the_head_is_trained_and_the_ordinary_one_is_not(change):
    made = step(**change)
    made(*batch())[0].backward()
    assert HEAD in made.trained_names and made.student.early_exit_head_swiftkv.weight.grad.any()
    assert made.student.lm_head.weight.grad is None
    assert made.student.model.norm_swiftkv.weight.grad is None or change.get("train_norm", True)
    assert not made.teacher.spec.early_exit or made.teacher is made.student  # no second copy of a large head


def test_stored_teacher_states_give_the_same_bits():
    made, (ids, positions, weights) = step(), batch()
    with torch.no_grad():
        state = lower_state(made.student, made.attention, ids, positions)
        final, _ = made.teacher.model.forward_upper(state, student=False)
    stored = made(ids, positions, weights, lower_hidden=state.hidden, teacher_hidden=final)
    assert torch.equal(stored[1], made(ids, positions, weights)[1])


def test_a_training_logs_both_losses_and_saves_the_head(inputs, tmp_path):
    train(inputs, tmp_path, spec=EXIT, recipe={"max_steps": 6})
    rows = log(tmp_path)
    for row in rows:
        assert row["loss"] == pytest.approx(row["logits_loss"] + row["early_exit_loss"], rel=1e-9)
    assert rows[-1]["early_exit_loss"] < rows[0]["early_exit_loss"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["spec"]["early_exit"] is True
    saved = load_swiftkv(tmp_path / "checkpoint", torch.float32)
    assert saved.spec == SwiftKVSpec(**EXIT)
    assert not torch.equal(saved.early_exit_head_swiftkv.weight, saved.lm_head.weight)
    assert torch.equal(saved.lm_head.weight, tiny_teacher().lm_head.weight)
