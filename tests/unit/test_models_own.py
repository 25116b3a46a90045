"""Answers that keep their own keys and values: one pass, generation and the parts put together by hand give the same."""

from dataclasses import replace

import pytest
import torch
from tests.conftest import tiny_teacher
from transformers.cache_utils import DynamicCache

from swiftkv.models import LowerState, rewire
from swiftkv.models.attention import each_table
from swiftkv.spec import SwiftKVSpec

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
PROMPT, TOKENS = 15, 24


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 128, (1, TOKENS), generator=torch.Generator().manual_seed(0))


def cut(state: LowerState, part: slice) -> LowerState:
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
@torch.inference_mode()
def test_one_pass_equals_generation_and_its_parts(architecture, ids):
    teacher = tiny_teacher(architecture).eval()
    own = rewire(teacher, SwiftKVSpec(6, 2, own_key_values=True)).eval()
    shared = rewire(teacher, SwiftKVSpec(6, 2)).eval()
    expected = by_parts(shared, ids)
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
