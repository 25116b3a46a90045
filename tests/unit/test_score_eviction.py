"""Caches that drop tokens: against a loop that decodes a token at a time and really drops them."""

from __future__ import annotations

import pytest
import torch
from artifact_helpers import SMOL, closeness, made, record, resolved, saved
from score_helpers import SHAPE, write_chats, write_source
from transformers import DynamicCache

from swiftkv.artifacts.scored import CLOSENESS
from swiftkv.artifacts.table import to_markdown
from swiftkv.score.eviction import POLICIES, Eviction, evicting, measure_eviction
from swiftkv.score.fidelity import measure_fidelity

DOCUMENT = torch.randint(3, 128, (40,), generator=torch.Generator().manual_seed(5)).tolist()


@torch.inference_mode()
def decoded(model, eviction: Eviction) -> tuple[torch.Tensor, int]:
    """Logits [tokens, words] of tokens fed one by one to a cache that loses one after each step, if it is too long."""
    model.set_attn_implementation("eager")
    cache, received, logits = DynamicCache(), {}, []
    for number, token in enumerate(DOCUMENT):
        place = torch.tensor([[number]])
        run = model(
            torch.tensor([[token]]), past_key_values=cache, position_ids=place, output_attentions=True, use_cache=True
        )
        logits.append(run.logits[0, -1])
        for layer, (states, weights) in enumerate(zip(cache.layers, run.attentions, strict=True)):
            heads, kept = states.keys.shape[1:3]
            now = weights[0, :, 0].unflatten(0, (heads, -1)).sum(1)
            before = received.get(layer, torch.zeros(heads, 0))
            received[layer] = torch.cat([before, torch.zeros(heads, 1)], dim=1) + now
            if kept <= (held := eviction.held(number + 1)):
                continue
            if eviction.policy == "window":
                lost = torch.full((heads,), eviction.sinks)
            else:
                lost = received[layer][:, : kept - held // 2].argmin(dim=1)
            left = torch.stack([torch.tensor([p for p in range(kept) if p != gone]) for gone in lost.tolist()])
            received[layer] = received[layer].gather(1, left)
            for name in ("keys", "values"):
                whole = getattr(states, name)
                index = left[None, :, :, None].expand(1, -1, -1, whole.shape[-1])
                setattr(states, name, whole.gather(2, index))
    return torch.stack(logits), cache.layers[0].keys.shape[2]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_one_pass_is_decoding_with_a_cache_that_really_drops_tokens(policy, share, tiny_teacher, grouped_query):
    model, eviction = tiny_teacher(grouped_query), Eviction(policy, share, sinks=3)
    whole = model(torch.tensor([DOCUMENT])).logits[0]
    with torch.inference_mode(), evicting(model, eviction):
        found = model(torch.tensor([DOCUMENT])).logits[0]
    assert torch.equal(model(torch.tensor([DOCUMENT])).logits[0], whole)  # outside, nothing is dropped
    expected, left = decoded(model, eviction)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert left == eviction.held(len(DOCUMENT)) == (40 if share == 1 else 40 * share)
    if share == 1:
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)
    else:
        assert (found - whole).abs().max() > 0.1


def test_latent_attention_drops_tokens_too(tiny_teacher):
    model = tiny_teacher("deepseek_v2")
    whole = model(torch.tensor([DOCUMENT])).logits
    for share, equal in ((1.0, True), (0.2, False)):
        with torch.inference_mode(), evicting(model, Eviction("attention", share, sinks=3)):
            assert torch.allclose(model(torch.tensor([DOCUMENT])).logits, whole, atol=1e-3) == equal


def test_the_table_puts_every_share_beside_what_was_trained(tmp_path):
    def cache(policy, share, kl):
        numbers = {name: {"value": kl, "stderr": 0.1, "n": 9} for name in CLOSENESS}
        return {"policy": policy, "share": share, "held": share + 0.01, **numbers}

    caches = [cache("window", 0.5, 0.3), cache("attention", 0.5, 0.2)]
    evicted = record("eviction", SMOL, "baseline", {"caches": caches, "documents": 9})
    trained = [closeness(SMOL, "swiftkv-50-across4", 1.3), closeness(SMOL, "swiftkv-50", 0.5)]
    entry = resolved("eviction", scale_name="local", models=["small"], variants=["swiftkv-50-across4", "swiftkv-50"])
    table = made(entry, fidelity=saved(tmp_path, trained), eviction=saved(tmp_path, [evicted]))
    found = table.values[["variant", "cache_percent", "prefill_reduction_percent", "kl"]].round(1).values.tolist()
    assert found == [
        ["swiftkv-50", 100, 53.3, 0.5],
        ["swiftkv-50-across4", 60, 53.3, 1.3],
        ["window", 51, 0, 0.3],
        ["attention", 51, 0, 0.2],
    ]
    assert list(table.panels[0].headings) == [0, 2, 3]
    assert "Cache" in table.panels[0].frame and "window, 50 %" in set(table.panels[0].frame["Cache"])
    assert "not measured" in to_markdown(made(entry, fidelity=saved(tmp_path, trained)))


def test_record(tiny_teacher, tmp_path):
    source, chats = write_source(tiny_teacher(**SHAPE), tmp_path), write_chats(tmp_path / "heldout.jsonl")
    asked = {"documents": 4, "max_length": 60, "seed": 7}
    written = measure_eviction(source, chats, **asked, shares=[1.0, 0.3], sinks=2, output=tmp_path / "out.json")
    assert (written["measure"], written["variant"]) == ("eviction", "baseline")
    assert written["settings"] == asked | {"shares": [1.0, 0.3], "sinks": 2}
    caches = written["result"]["caches"]
    assert [(cache["policy"], cache["share"]) for cache in caches] == [(p, s) for p in POLICIES for s in (1.0, 0.3)]
    same = measure_fidelity(source, None, "baseline", None, "auto", chats, **asked, output=tmp_path / "same.json")
    assert written["data"] == same["data"] and written["result"]["tokens"] == same["result"]["tokens"]
    for all_kept, few_kept in (caches[:2], caches[2:]):
        assert all_kept["held"] == 1 and all_kept["kl"]["value"] < 1e-3 < few_kept["kl"]["value"]
        assert few_kept["held"] == pytest.approx(0.3, abs=0.02)
        assert all_kept["perplexity"]["value"] == pytest.approx(same["result"]["perplexity"]["value"], rel=1e-2)
