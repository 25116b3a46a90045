"""Recipe, losses, the step, attention over packed rows, and when a training saves its state and stops, in this process."""

import os
import signal
from itertools import pairwise
from time import monotonic
from time import time as now
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import as_trained, random_ids, refused, tiny_teacher
from tests.programs import write_program
from tests.unit.distill_helpers import RECIPE
from torch.testing import assert_close

from swiftkv.distill import attention, losses
from swiftkv.distill import progress as module
from swiftkv.distill.progress import Clock
from swiftkv.distill.recipe import Recipe
from swiftkv.distill.step import DistillationStep, FineTuningStep, next_tokens
from swiftkv.models.early_exit import early_logits
from swiftkv.spec import SwiftKVSpec

SPEC, EXIT = SwiftKVSpec(6, 3, 2), SwiftKVSpec(6, 3, 2, early_exit=True)


def recipe(**changes):
    return Recipe.from_dict(RECIPE | {"max_length": 32} | changes)


def batch(seed=0):
    """Two rows of 32 with samples of 10, 22 and of 5, 20, 7 (the last is padding)."""
    ids = random_ids(2, 32, seed=seed)
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in ((10, 22), (5, 20, 7))])
    weights = torch.ones(2, 32)
    weights[1, 25:] = 0
    return ids, positions, weights / weights.sum()


# Recipe


@pytest.mark.parametrize(
    "change, spec, said",
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
    with refused(said):
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
    with refused("too few"):
        recipe(batch_size=32, epochs=1).total_steps(10)
    assert recipe(batch_size=8, micro_batch_size=2).accumulation(2) == 2
    with refused("not a multiple"):
        recipe(batch_size=8, micro_batch_size=2).accumulation(3)


# The step


def test_targets_stay_inside_their_sample():
    ids, positions, _ = batch()
    targets, has = (part.view(2, 32) for part in next_tokens(ids, positions))
    assert not has[0, [9, 31]].any() and not has[1, [4, 24, 31]].any() and has.sum() == 64 - 5
    assert (targets[0, :9] == ids[0, 1:10]).all()


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
        unused = step.student.teacher_projection_names()
        expected |= {
            name
            for name, _ in step.student.named_parameters()
            if name.startswith(("model.layers.3.", "model.layers.4.", "model.layers.5.")) and name not in unused
        }
        assert all(p.grad is None for p in step.teacher.parameters()) and not step.teacher.spec.early_exit
    assert with_gradient == expected == {name for name, p in step.student.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("train", ["qkv", "upper_layers"])
def test_one_copy_of_frozen_weights(architecture, train):
    base = tiny_teacher(architecture)
    step = DistillationStep(base, SPEC, recipe(train=train))
    memory = {p.data_ptr(): p.numel() for p in step.parameters()}
    frozen = {p.data_ptr(): p.numel() for p in base.parameters()}
    own = sum(p.numel() for p in step.student.parameters() if p.data_ptr() not in frozen)
    teachers = sum(p.numel() for p in step.teacher.swiftkv_parameters().values()) if train == "upper_layers" else 0
    assert sum(memory.values()) == sum(frozen.values()) + own + teachers
    assert not hasattr(base.config, "swiftkv") and base.config.model_type == architecture


@pytest.mark.parametrize(
    "architecture, spec, changes",
    [
        ("llama", SPEC, {"hidden_state_weight": 3.0}),
        ("qwen2", EXIT, {}),
        ("qwen3", EXIT, {"loss": "lm"}),
        ("qwen3_moe", EXIT, {"hidden_state_weight": 3.0}),
        ("deepseek_v2", SPEC, {"hidden_state_weight": 3.0, "hidden_state_layer": -1, "logits_weight": 2.0}),
    ],
)
def test_step_is_the_plain_two_model_loss(architecture, spec, changes, monkeypatch):
    """Two whole models of transformers, whole logits and its own masks for packed rows; the gradients too."""
    monkeypatch.setattr(losses, "ROWS", 7)  # several chunks, the last one short
    monkeypatch.setattr(losses, "INNER_ELEMENTS", 3 * 128)
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
    assert_close(parts, torch.stack(expected).detach(), rtol=1e-4, atol=1e-6)
    whole = settings.logits_weight * (expected[0] + expected[2]) + 3 * expected[1]
    assert_close(total, whole, rtol=1e-4, atol=1e-6)
    whole.backward()
    for name, parameter in student.swiftkv_parameters().items():
        assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "loss, tokens", [("distillation", "assistant"), ("lm", "assistant"), ("distillation", "assistant_unshifted")]
)
def test_logits_of_the_assistants_tokens_only(loss, tokens):
    """Positions count whose next token, in the same sample, is the assistant's; all count in the hidden states' loss."""
    ids, positions, weights = batch()
    assistant = torch.zeros_like(weights)
    assistant[0, 7:14] = 1  # ends one sample, and begins the next with tokens nothing predicts
    assistant[1, 20:25] = 1
    counted = torch.zeros_like(weights)
    counted[0, 6:9] = counted[0, 10:13] = counted[1, 19:24] = 1
    if tokens == "assistant_unshifted":
        counted = assistant
    hidden = {"hidden_state_weight": 1.0} if loss == "distillation" else {}
    base = tiny_teacher()
    step = DistillationStep(base, SPEC, recipe(loss=loss, logits_tokens=tokens, **hidden))
    whole = DistillationStep(base, SPEC, recipe(loss=loss, **hidden))
    masked, parts = step(ids, positions, weights, assistant_mask=assistant)
    assert_close(parts[0], whole(ids, positions, weights * counted)[1][0])
    assert_close(parts[1], whole(ids, positions, weights)[1][1])
    assert masked < whole(ids, positions, weights)[0]


def test_own_key_values_train_with_recomputed_layers_too(architecture):
    assistant, found = torch.zeros(2, 32), []
    assistant[:, 15:25] = 1
    for recomputed in (False, True):
        settings = recipe(logits_tokens="assistant", gradient_checkpointing=recomputed)
        step = DistillationStep(tiny_teacher(architecture), SwiftKVSpec(6, 3, own_key_values=True), settings)
        loss, _ = step(*batch(), assistant_mask=assistant)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in step.student.swiftkv_parameters().values())])
    assert_close(*found)


@pytest.fixture
def time(monkeypatch):
    """A clock that stands still until it is moved."""
    time = SimpleNamespace(now=1000.0, monotonic=lambda: time.now)
    monkeypatch.setattr(module, "time", time)
    return time


def run(time, clock, step, save, steps=10**5):
    """Train until told to stop; when states were saved, in seconds since the start."""
    saved = []
    for _ in range(steps):
        time.now += step
        due, stop = clock.ask("cpu")
        if due:
            time.now += save
            clock.saved()
            saved.append(time.now - 1000)
        if stop:
            assert stop == "before the time of its job ends"
            return saved
    return saved


@pytest.mark.parametrize("step, save", [(5, 10), (600, 2000)])
def test_the_last_state_is_whole_before_the_job_ends(time, step, save):
    """However long a state takes, as long as one fits; and time is not thrown away."""
    saved = run(time, Clock(20, 1000.0 + 24 * 3600), step, save)
    left = 24 * 3600 - saved[-1]
    assert 0 <= left < 300 + 2 * save + 2 * step


def test_states_take_at_most_a_part_of_the_time(time):
    """A state of 405B that takes 15 minutes is not made every 20; one of seconds is."""
    for save, pause in ((900, 9000), (10, 1200)):
        time.now = 1000.0
        saved = run(time, Clock(20), 60, save, steps=1000)
        between = [after - save - before for before, after in pairwise(saved)]
        assert pause < min(between) <= max(between) <= pause + 60
    # Unless an earlier attempt has told, a job of two hours would not find out before its end, as its first state is its last.
    time.now = 1000.0
    clock = Clock(240, 1000.0 + 2 * 3600, took=1500)
    assert run(time, clock, 60, 1500)[-1] <= 120 * 60 and clock.took == 1500


def test_the_end_of_a_job_is_slurms_own(tmp_path, monkeypatch):
    """Else it is counted from the start of the process, as without SLURM."""
    later = now() + 5000
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    write_program(tmp_path / "squeue", f'[[ " $* " == *" 7 "* && $SLURM_TIME_FORMAT == %s ]] && echo {later:.0f}')
    assert module.end_of_job(1) - monotonic() == pytest.approx(5000, abs=5)
    for unlimited in ("echo NONE", "exit 1"):
        write_program(tmp_path / "squeue", unlimited)
        assert module.end_of_job(2) == pytest.approx(module.end_of_job(1) + 60) and module.end_of_job(None) is None


def test_control_c_waits_for_the_state_and_a_second_one_does_not():
    with Clock(20) as clock:
        signal.raise_signal(signal.SIGINT)
        assert clock.ask("cpu") == (True, "by SIGINT")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_short_window_keeps_the_models_own_attention():
    for window, expected in ((8, attention.MASKED), (64, attention.PACKED)):
        step = DistillationStep(tiny_teacher("mistral", sliding_window=window), SPEC, recipe())
        assert step.attention == expected == step.student.config._attn_implementation


GPU = {"dtype": "bfloat16", "max_length": 8192}
CPU = {"dtype": "float32", "max_length": 512}


@pytest.mark.parametrize(
    "capability, changes, has_flash, expected",
    [
        (None, CPU | {"max_length": 2048}, True, "sdpa"),
        (None, CPU | {"attention": "flex_attention"}, True, "on GPUs only"),
        ((8, 0), GPU, True, "flash_attention_2"),
        ((8, 0), GPU, False, "flex_attention"),
        ((7, 5), GPU, True, "flex_attention"),
        ((8, 0), GPU | {"dtype": "float32"}, True, "flex_attention"),
        ((8, 0), GPU | {"dtype": "float32", "attention": "flash_attention_2"}, True, "cannot run here"),
        ((6, 1), GPU, False, "a dense mask"),
        ((6, 1), GPU | {"attention": "sdpa"}, False, "sdpa"),
    ],
)
def test_choice_of_attention(capability, changes, has_flash, expected, monkeypatch):
    monkeypatch.setattr(attention, "compute_device", lambda: "cpu" if capability is None else "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: has_flash)
    monkeypatch.setattr(attention, "is_torch_flex_attn_available", lambda: True)
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: name)
    if " " in expected:
        with refused(expected):
            attention.choose_kernel(recipe(**changes))
    else:
        assert attention.choose_kernel(recipe(**changes)) == expected


def varlen_attention(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, causal, softmax_scale, **_):
    """What flash_attn_varlen_func computes: [tokens, heads, head size] of all samples, between the given edges."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q.dtype == torch.int32 and causal
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    parts = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        states = (part[start:end].transpose(0, 1) for part in (query, key, value))
        parts.append(
            F.scaled_dot_product_attention(*states, is_causal=True, scale=softmax_scale, enable_gqa=True).transpose(
                0, 1
            )
        )
    return torch.cat(parts)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "deepseek_v2"])
@pytest.mark.parametrize("name", [attention.FLASH, attention.FLEX])
def test_gpu_attention_is_ours(architecture, name, monkeypatch):
    """The same losses as with our attention; the kernels themselves are stood in for by plain ones."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import PreTrainedModel, masking_utils, modeling_flash_attention_utils
    from transformers.integrations import flex_attention as flex

    def losses():
        steps = (
            DistillationStep(tiny_teacher(architecture), SPEC, recipe()),
            FineTuningStep(tiny_teacher(architecture), recipe(train="all", loss="lm")),
        )
        used.extend(step.student.config._attn_implementation for step in steps)
        with torch.no_grad():  # FlexAttention has no backward pass on a CPU
            return [step(*batch())[0] for step in steps]

    def set_name(model, name):
        model.config._attn_implementation = name  # without asking whether the package is installed

    used = []
    expected = losses()

    def process(is_causal, **given):
        return {**given, "causal": is_causal}

    functions = ((None, varlen_attention, None, None, None), (process, process))
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda _: functions)
    monkeypatch.setattr(flex, "compile_friendly_flex_attention", lambda *a, training, **k: flex_attention(*a, **k))
    monkeypatch.setattr(masking_utils, "create_block_mask", lambda _compile, **k: create_block_mask(**k))
    monkeypatch.setattr(attention, "choose_kernel", lambda *_: name)
    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", set_name)
    assert_close(losses(), expected, rtol=1e-5, atol=1e-6)
    assert used == [attention.PACKED] * 2 + [name] * 2
