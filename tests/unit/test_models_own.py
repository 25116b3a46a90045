"""Answers that keep their own keys and values: one pass, generation and the parts put together by hand give the same."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from swiftkv.models import rewire
from swiftkv.score.family import answer_hidden, lower_state
from swiftkv.spec import SwiftKVSpec
from tests.conftest import tiny_teacher

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PROMPT, TOKENS = 15, 24


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 128, (1, TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "deepseek_v2"])
@torch.inference_mode()
def test_one_pass_equals_generation_and_its_parts(architecture, ids):
    teacher = tiny_teacher(architecture).eval()
    own = rewire(teacher, SwiftKVSpec(6, 2, own_key_values=True)).eval()
    shared = rewire(teacher, SwiftKVSpec(6, 2)).eval()
    expected = shared.lm_head(answer_hidden(shared, "own", lower_state(shared, ids[0].tolist()), PROMPT, None))
    assert (shared(ids).logits[0, PROMPT - 1 :] - expected).abs().max() > 1e-3
    answering = torch.arange(TOKENS)[None] >= PROMPT - 1
    torch.testing.assert_close(own(ids, full_depth=answering).logits[0, PROMPT - 1 :], expected, **CLOSE)
    cache = DynamicCache(config=own.config)
    parts = [ids[:, :PROMPT], *ids[:, PROMPT:].split(1, dim=1)]
    rows = [own(part, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1] for part in parts]
    torch.testing.assert_close(torch.stack(rows), expected, **CLOSE)
    # A model that runs all layers for every token is the teacher.
    torch.testing.assert_close(own(ids).logits, teacher(ids).logits, **CLOSE)


def test_a_pass_that_does_not_say_which_tokens_run_all_layers_is_refused(ids):
    own = rewire(tiny_teacher("llama").eval(), SwiftKVSpec(6, 2, own_key_values=True)).eval()
    with pytest.raises(ValueError, match="say which tokens run all layers"):
        own.model(ids)


@pytest.mark.parametrize("others", [{"key_value_group_size": 2}, {"num_key_value_heads": 1}, {"early_exit": True}])
def test_what_it_cannot_go_with_is_refused(others):
    with pytest.raises(ValueError, match="own_key_values needs"):
        SwiftKVSpec(6, 2, own_key_values=True, **others)
