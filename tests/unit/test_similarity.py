"""Similarity of layer inputs (Eq. 1)."""

from __future__ import annotations

import json

import pytest
import torch
from score_helpers import SHAPE, write_chats, write_source

from swiftkv.errors import UserError
from swiftkv.score.neighbors import Neighbors
from swiftkv.score.similarity import layer_similarity, measure_similarity, simscore_errors, simscores


def layer_inputs(model, document: list[int]) -> torch.Tensor:
    """Inputs of every layer [L, tokens, hidden], caught where they enter."""
    caught = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, arguments, keywords: caught.append(arguments[0][0]), with_kwargs=True)
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(torch.tensor([document]))
    for hook in hooks:
        hook.remove()
    return torch.stack(caught)


@pytest.mark.parametrize("chunk", [256, 3])
def test_pairwise_equals_the_direct_computation(tiny_teacher, architecture, chunk, monkeypatch):
    monkeypatch.setattr("swiftkv.score.similarity.CHUNK", chunk)
    model = tiny_teacher(architecture)
    documents = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16]]
    sums, tokens, _ = layer_similarity(model, documents)
    pairwise = sums.sum(0) / sum(tokens)
    states = torch.cat([layer_inputs(model, document) for document in documents], dim=1).double()
    direct = torch.nn.functional.cosine_similarity(states[:, None], states[None], dim=-1).mean(dim=-1)
    assert tokens == [5, 2, 7]
    assert pairwise.shape == (6, 6)
    torch.testing.assert_close(pairwise, direct, rtol=0, atol=1e-6)
    # A mean over documents, or inputs shifted by one layer, would be off by far more.
    assert (direct - direct.roll(1, 0)).abs().max() > 1e-2


def test_neighbors_are_compared_head_by_head_as_if_before_rope(tiny_teacher, grouped_query):
    """Keys and values caught where the layers project them, before RoPE, which turns those of both layers alike."""
    model, documents = tiny_teacher(grouped_query), [[3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]]
    *_, neighbors = layer_similarity(model, documents)
    for name, modules in (("keys", ("k_norm", "k_proj")), ("values", ("v_proj",))):
        caught: dict[int, list[torch.Tensor]] = {number: [] for number in range(6)}
        hooks = [
            getattr(layer.self_attn, next(module for module in modules if hasattr(layer.self_attn, module)))
            .register_forward_hook(lambda *run, into=caught[number]: into.append(run[-1][0]))
            for number, layer in enumerate(model.model.layers)
        ]  # fmt: skip
        with torch.no_grad():
            for document in documents:
                model(torch.tensor([document]))
        for hook in hooks:
            hook.remove()
        heads = model.config.num_key_value_heads
        states = [torch.cat([part.reshape(len(part), heads, -1) for part in caught[layer]]) for layer in range(6)]
        expected = [
            torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1).mean().item()
            for one, other in zip(states, states[1:], strict=False)
        ]
        found = neighbors[name].result()
        assert found["cosine"] == pytest.approx(expected, abs=1e-5)
        assert len(found["cosine_stderr"]) == len(found["cka"]) == 5 and min(found["cosine_stderr"]) > 0
        assert max(expected) - min(expected) > 1e-2


def test_cka_sees_through_rotations_and_moved_heads_as_the_cosine_does_not():
    generator = torch.Generator().manual_seed(0)
    layer = torch.randn(2, 40, 8, generator=generator) + 1
    moved = (layer @ torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]).flip(0)
    other = torch.randn(2, 40, 8, generator=generator)
    gathered = Neighbors()
    for tokens in (slice(0, 15), slice(15, 40)):
        gathered.add([states[:, tokens] for states in (layer, moved, other)])
    found = gathered.result()
    assert found["cka"][0] == pytest.approx(1, abs=1e-5) and abs(found["cosine"][0]) < 0.9
    # By its definition, from how alike tokens are within each layer (Kornblith et al., Section 3, linear kernel).
    flat = [states.transpose(0, 1).flatten(1).double() for states in (moved, other)]
    grams = [(part - part.mean(0)) @ (part - part.mean(0)).mT for part in flat]
    expected = (grams[0] * grams[1]).sum() / (grams[0].norm() * grams[1].norm())
    assert found["cka"][1] == pytest.approx(expected.item(), abs=1e-5) and expected < 0.7


def test_simscore_is_the_mean_over_later_layers():
    pairwise = torch.tensor([[1.0, 0.5, 0.1], [0.5, 1.0, 0.7], [0.1, 0.7, 1.0]], dtype=torch.float64)
    assert simscores(pairwise) == pytest.approx([0.3, 0.7])


def test_errors_are_those_of_documents():
    one = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]], dtype=torch.float64)
    # Two documents of 10 tokens whose scores are 0.3 and 0.6, and 0.6 and 0.6: half of how far apart they are.
    other = one + torch.tensor([[0.0, 0.3, 0.3], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert simscore_errors(10 * torch.stack([one, other]), [10, 10]) == pytest.approx([0.15, 0.0])
    assert simscore_errors(10 * one[None], [10]) == [None, None]


def test_record(tiny_teacher, tmp_path):
    source = write_source(tiny_teacher(**SHAPE), tmp_path)
    chats = write_chats(tmp_path / "train.jsonl")
    written = measure_similarity(source, chats, 4, 20, 7, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == written
    assert (written["measure"], written["variant"], written["model"]["title"]) == ("similarity", "baseline", "Tiny")
    assert written["settings"] == {"documents": 4, "max_length": 20, "seed": 7}
    record = written["result"]
    assert (record["documents"], record["num_hidden_layers"]) == (4, 6)
    assert record["tokens"] == 4 * 20
    assert len(record["simscore"]) == len(record["simscore_stderr"]) == 5 and all(record["simscore_stderr"])
    assert [row[number] for number, row in enumerate(record["pairwise"])] == pytest.approx([1.0] * 6)
    assert {of: len(found["cosine"]) for of, found in record["neighbors"].items()} == {"keys": 5, "values": 5}


def test_too_few_gpus_are_one_sentence(tiny_teacher, tmp_path, full_gpus):
    source, chats = write_source(tiny_teacher(**SHAPE), tmp_path), write_chats(tmp_path / "train.jsonl")
    with pytest.raises(UserError, match="does not fit into the memory of the GPUs"):
        measure_similarity(source, chats, 4, 20, 7, tmp_path / "out.json")
