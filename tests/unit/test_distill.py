"""Recipe, losses and the step, in this process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import as_trained, tiny_teacher
from tests.unit.distill_helpers import RECIPE

from swiftkv.distill import losses as losses_module
from swiftkv.distill.losses import distillation_loss, lm_loss
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import DistillationStep, next_tokens
from swiftkv.errors import UserError
from swiftkv.models.early_exit import early_logits
from swiftkv.spec import SwiftKVSpec

SPEC, EXIT = SwiftKVSpec(6, 3, 2), SwiftKVSpec(6, 3, 2, early_exit=True)


def recipe(**changes) -> Recipe:
    return Recipe.from_dict(RECIPE | {"max_length": 32} | changes)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of 32 with samples of 10, 22 and of 5, 20, 7 (the last is padding)."""
    ids = torch.randint(3, 128, (2, 32), generator=torch.Generator().manual_seed(seed))
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in ((10, 22), (5, 20, 7))])
    weights = torch.ones(2, 32)
    weights[1, 25:] = 0
    return ids, positions, weights / weights.sum()


# Recipe


@pytest.mark.parametrize(
    ("change", "spec", "said"),
    [
        ({"adam_beta2": 1}, SPEC, "adam_beta2"),
        ({"logits_weight": 0}, SPEC, "nothing would be trained"),
        ({"loss": "lm", "hidden_state_weight": 1}, SPEC, "the lm loss has no teacher"),
        ({"train": "all"}, None, "its loss must be lm"),
        ({"train": "all", "loss": "lm", "start": "fitted"}, None, "nothing to fit"),
        ({}, None, "needs a rewired model"),
        ({"train": "all", "loss": "lm"}, SPEC, "not rewired"),
        ({}, SwiftKVSpec(6, 6), "nothing to train"),
        ({"start": "fitted"}, SwiftKVSpec(6, 3, 1, 2), "own key/value heads"),
        ({"train": "upper_layers"}, SwiftKVSpec(6, 3, own_key_values=True), "train is qkv"),
        ({"hidden_state_weight": 1.0, "hidden_state_layer": 3}, SPEC, "not above layer l"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(change, spec, said):
    with pytest.raises(UserError, match=said):
        recipe(**change).check_spec(spec)


def test_schedule():
    linear = recipe(learning_rate=1.0, warmup_ratio=0.2)
    assert [linear.learning_rate_at(step, 10) for step in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 0.125]
    for schedule, expected in (("cosine", 0.75), ("constant", 1.0)):
        rate = recipe(learning_rate=1.0, warmup_ratio=0.25, schedule=schedule).learning_rate_at(6, 12)
        assert rate == pytest.approx(expected)


def test_steps_and_accumulation():
    assert recipe(batch_size=4, epochs=2).total_steps(10) == 5
    assert recipe(batch_size=4, max_steps=50, training_share=0.25).total_steps(10) == 12
    assert recipe(batch_size=4, epochs=2, training_share=0.01).total_steps(10) == 1
    with pytest.raises(UserError, match="too few"):
        recipe(batch_size=32, epochs=1).total_steps(10)
    assert recipe(batch_size=8, micro_batch_size=2).accumulation(2) == 2
    with pytest.raises(UserError, match="not a multiple"):
        recipe(batch_size=8, micro_batch_size=2).accumulation(3)


# Losses


@pytest.fixture
def head_inputs(monkeypatch):
    monkeypatch.setattr(losses_module, "ROWS", 7)  # several chunks, the last one short
    monkeypatch.setattr(losses_module, "INNER_ELEMENTS", 3 * 50)
    generator = torch.Generator().manual_seed(0)
    student, teacher, head = (torch.randn(shape, generator=generator) for shape in ((20, 16), (20, 16), (50, 16)))
    weights = torch.rand(20, generator=generator)
    weights[3:5] = 0
    return student.requires_grad_(), teacher, head, weights


def test_distillation_loss_is_the_plain_one(head_inputs):
    student, teacher, head, weights = head_inputs
    ours = distillation_loss(student, head, weights, teacher, 1.5)
    (gradient,) = torch.autograd.grad(3 * ours, student)
    log_s, log_t = ((states @ head.T / 1.5).log_softmax(-1) for states in (student, teacher))
    plain = (F.kl_div(log_s, log_t, reduction="none", log_target=True).sum(-1) * weights).sum() * 1.5**2
    (expected,) = torch.autograd.grad(3 * plain, student)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_lm_loss_is_the_plain_one_and_trains_the_head_too(head_inputs):
    student, _, head, weights = head_inputs
    targets = torch.arange(20) % 50
    ours = 2 * lm_loss(student, head.requires_grad_(), weights, targets)
    plain = 2 * (F.cross_entropy(student @ head.T, targets, reduction="none") * weights).sum()
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(loss, (student, head)) for loss in (ours, plain))
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    frozen = torch.autograd.grad(2 * lm_loss(student, head.detach(), weights, targets), student)[0]
    torch.testing.assert_close(frozen, torch.autograd.grad(2 * lm_loss(student, head, weights, targets), student)[0])


def test_targets_stay_inside_their_sample():
    ids, positions, _ = batch()
    targets, has = (part.view(2, 32) for part in next_tokens(ids, positions))
    assert not has[0, [9, 31]].any() and not has[1, [4, 24, 31]].any() and has.sum() == 64 - 5
    assert (targets[0, :9] == ids[0, 1:10]).all()


# The step


@pytest.mark.parametrize("spec", [SPEC, EXIT], ids=["", "early exit"])
@pytest.mark.parametrize(
    "change",
    [{"train_norm": False}, {"train": "upper_layers"}, {"loss": "lm"}, {"gradient_checkpointing": True}],
)
def test_gradients_reach_what_is_trained_and_nothing_else(architecture, change, spec):
    step = DistillationStep(tiny_teacher(architecture), spec, recipe(**change))
    step(*batch())[0].backward()
    with_gradient = {name for name, p in step.student.named_parameters() if p.grad is not None and p.grad.any()}
    expected = set(step.student.swiftkv_parameters())
    if not change.get("train_norm", True):
        expected.remove("model.norm_swiftkv.weight")
    if change.get("train") == "upper_layers":
        unused = step.student.model.teacher_projection_names(prefix="model.")
        expected |= {
            name
            for name, _ in step.student.named_parameters()
            if name.startswith(("model.layers.3.", "model.layers.4.", "model.layers.5.")) and name not in unused
        }
        assert all(p.grad is None for p in step.teacher.parameters()) and not step.teacher.spec.early_exit
    assert with_gradient == expected == set(step.trained_names)


@pytest.mark.parametrize("train", ["qkv", "upper_layers"])
def test_one_copy_of_frozen_weights(train):
    base = tiny_teacher()
    step = DistillationStep(base, SPEC, recipe(train=train))
    memory = {p.data_ptr(): p.numel() for p in step.parameters()}
    frozen = {p.data_ptr(): p.numel() for p in base.parameters()}
    own = sum(p.numel() for p in step.student.parameters() if p.data_ptr() not in frozen)
    teachers = sum(p.numel() for p in step.teacher.swiftkv_parameters().values()) if train == "upper_layers" else 0
    assert sum(memory.values()) == sum(frozen.values()) + own + teachers


@pytest.mark.parametrize(
    ("architecture", "spec", "changes"),
    [
        ("llama", SPEC, {"hidden_state_weight": 3.0}),
        ("qwen2", EXIT, {}),
        ("qwen3", EXIT, {"loss": "lm"}),
        ("deepseek_v2", SPEC, {"hidden_state_weight": 3.0, "hidden_state_layer": -1, "logits_weight": 2.0}),
    ],
)
def test_step_is_the_plain_two_model_loss(architecture, spec, changes):
    """Two whole models of transformers, whole logits and its own masks for packed rows; the gradients too."""
    step = DistillationStep(tiny_teacher(architecture), spec, recipe(**changes))
    settings, student, (ids, positions, weights) = step.recipe, as_trained(step.student), batch()
    total, parts = step(ids, positions, weights)
    total.backward()
    ours = {name: p.grad.clone() for name, p in student.swiftkv_parameters().items()}
    step.zero_grad()
    student.set_attn_implementation("sdpa")
    arguments = {"position_ids": positions, "use_cache": False, "output_hidden_states": True}
    found = student(ids, **arguments)
    with torch.no_grad():
        teacher = tiny_teacher(architecture)(ids, **arguments)
    targets, has_target = next_tokens(ids, positions)

    def plain(logits):
        if settings.loss == "lm":
            terms = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none") * has_target
        else:
            log_s, log_t = ((one / 2).log_softmax(-1) for one in (logits, teacher.logits))
            terms = 4 * (log_t.exp() * (log_t - log_s)).sum(-1).flatten()
        return (terms * weights.flatten()).sum()

    layer = settings.hidden_state_layer
    difference = found.hidden_states[layer] - teacher.hidden_states[layer]
    expected = [plain(found.logits), (difference.square().mean(-1) * weights).sum(), torch.tensor(0.0)]
    if spec.early_exit:
        expected[2] = plain(early_logits(student, found.hidden_states[3]))
    if not settings.hidden_state_weight:
        expected[1] = torch.tensor(0.0)
    torch.testing.assert_close(parts, torch.stack(expected).detach(), rtol=1e-4, atol=1e-6)
    whole = settings.logits_weight * (expected[0] + expected[2]) + 3 * expected[1]
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-6)
    whole.backward()
    for name, parameter in student.swiftkv_parameters().items():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", ["distillation", "lm"])
def test_logits_of_the_assistants_tokens_only(loss):
    """Positions count whose next token, in the same sample, is the assistant's; all count in the hidden states' loss."""
    ids, positions, weights = batch()
    assistant = torch.zeros_like(weights)
    assistant[0, 7:14] = 1  # ends one sample, and begins the next with tokens nothing predicts
    assistant[1, 20:25] = 1
    counted = torch.zeros_like(weights)
    counted[0, 6:9] = counted[0, 10:13] = counted[1, 19:24] = 1
    hidden = {"hidden_state_weight": 1.0} if loss == "distillation" else {}
    base = tiny_teacher()
    step = DistillationStep(base, SPEC, recipe(loss=loss, logits_tokens="assistant", **hidden))
    whole = DistillationStep(base, SPEC, recipe(loss=loss, **hidden))
    masked, parts = step(ids, positions, weights, assistant_mask=assistant)
    torch.testing.assert_close(parts[0], whole(ids, positions, weights * counted)[1][0])
    torch.testing.assert_close(parts[1], whole(ids, positions, weights)[1][1])
    assert masked < whole(ids, positions, weights)[0]
