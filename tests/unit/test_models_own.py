import pytest
import torch
from transformers.cache_utils import DynamicCache

from swiftkv.models import rewire
from swiftkv.score.family import lower_state, neighbor_hidden
from swiftkv.spec import SwiftKVSpec
from tests.conftest import tiny_teacher


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "deepseek_v2"])
@torch.inference_mode()
def test_own(architecture):
    teacher = tiny_teacher(architecture).eval()
    own = rewire(teacher, SwiftKVSpec(6, 2, own_key_values=True)).eval()
    shared = rewire(teacher, SwiftKVSpec(6, 2)).eval()
    ids = torch.randint(3, 128, (1, 24), generator=torch.Generator().manual_seed(0))
    P = 15
    h = neighbor_hidden(shared, "own", lower_state(shared, ids[0].tolist()), P, None)
    expected = shared.lm_head(h)
    full = torch.arange(24)[None] >= P - 1
    got = own(ids, full_depth=full).logits[0, P - 1 :]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    cache = DynamicCache(config=own.config)
    rows = [own(ids[:, :P], past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]]
    for t in range(P, 24):
        rows.append(own(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits[0, -1])
    torch.testing.assert_close(torch.stack(rows), expected, rtol=1e-4, atol=1e-5)
    assert (shared(ids).logits[0, P:] - expected[1:]).abs().max() > 1e-3
    torch.testing.assert_close(own(ids).logits, teacher(ids).logits, rtol=1e-4, atol=1e-5)
    assert own.generate(ids[:, :P], max_new_tokens=6, do_sample=False).shape == (1, P + 6)
