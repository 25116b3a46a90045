"""Attention over packed rows: which function is chosen, and that all of them compute the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import tiny_teacher
from tests.unit.test_distill import SPEC, batch, recipe

from swiftkv.distill import attention
from swiftkv.distill.step import DistillationStep, FineTuningStep
from swiftkv.errors import UserError


def test_short_window_keeps_the_models_own_attention():
    for window, expected in ((8, attention.MASKED), (64, attention.PACKED)):
        step = DistillationStep(tiny_teacher("mistral", sliding_window=window), SPEC, recipe())
        assert step.attention == expected == step.student.config._attn_implementation


GPU = {"dtype": "bfloat16", "max_length": 8192}
CPU = {"dtype": "float32", "max_length": 512}


@pytest.mark.parametrize(
    ("capability", "changes", "has_flash", "expected"),
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
        with pytest.raises(UserError, match=expected):
            attention.choose(recipe(**changes))
    else:
        assert attention.choose(recipe(**changes)) == expected


def varlen_attention(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, causal, softmax_scale, **_):
    """What flash_attn_varlen_func computes: [tokens, heads, head size] of all samples, between the given edges."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q.dtype == torch.int32 and causal
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    parts = []
    for start, end in zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], strict=False):
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

    def losses() -> list[torch.Tensor]:
        steps = (
            DistillationStep(tiny_teacher(architecture), SPEC, recipe()),
            FineTuningStep(tiny_teacher(architecture), recipe(train="all", loss="lm")),
        )
        used.extend(step.student.config._attn_implementation for step in steps)
        with torch.no_grad():  # FlexAttention has no backward pass on a CPU
            return [step(*batch())[0] for step in steps]

    def set_name(model: PreTrainedModel, name: str) -> None:
        model.config._attn_implementation = name  # without asking whether the package is installed

    used = []
    expected = losses()

    def process(is_causal, **given):
        return {**given, "causal": is_causal}

    functions = ((None, varlen_attention, None, None, None), (process, process))
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda _: functions)
    monkeypatch.setattr(flex, "compile_friendly_flex_attention", lambda *a, training, **k: flex_attention(*a, **k))
    monkeypatch.setattr(masking_utils, "create_block_mask", lambda _compile, **k: create_block_mask(**k))
    monkeypatch.setattr(attention, "choose", lambda *_: name)
    monkeypatch.setattr(PreTrainedModel, "set_attn_implementation", set_name)
    torch.testing.assert_close(losses(), expected, rtol=1e-5, atol=1e-6)
    assert used == [attention.PACKED] * 2 + [name] * 2
