"""Similarity of layer inputs (Eq. 1)."""

import pytest
import torch
from score_helpers import write_chats
from tests.conftest import tiny_teacher

from pipeline.config.settings import Fidelity
from pipeline.quality.similarity import layer_similarity, measure_similarity, simscore_errors, simscores


def layer_inputs(model, document):
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
def test_pairwise_equals_the_direct_computation(architecture, chunk, monkeypatch):
    monkeypatch.setattr("pipeline.quality.similarity.CHUNK", chunk)
    model = tiny_teacher(architecture)
    documents = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16]]
    sums, tokens = layer_similarity(model, documents)
    pairwise = sums.sum(0) / sum(tokens)
    states = torch.cat([layer_inputs(model, document) for document in documents], dim=1).double()
    direct = torch.nn.functional.cosine_similarity(states[:, None], states[None], dim=-1).mean(dim=-1)
    assert tokens == [5, 2, 7]
    assert pairwise.shape == (6, 6)
    torch.testing.assert_close(pairwise, direct, rtol=0, atol=1e-6)
    # A mean over documents, or inputs shifted by one layer, would be off by far more.
    assert (direct - direct.roll(1, 0)).abs().max() > 1e-2


def test_errors_are_those_of_documents():
    one = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]], dtype=torch.float64)
    # Two documents of 10 tokens whose scores are 0.3 and 0.6, and 0.6 and 0.6: half of how far apart they are.
    assert simscores(one) == pytest.approx([0.3, 0.6])
    other = one + torch.tensor([[0.0, 0.3, 0.3], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert simscore_errors(10 * torch.stack([one, other]), [10, 10]) == pytest.approx([0.15, 0.0])
    assert simscore_errors(10 * one[None], [10]) == [None, None]


def test_record(source, tmp_path):
    chats = write_chats(tmp_path / "train.jsonl")
    settings = Fidelity(documents=4, max_length=20, seed=7)
    result = measure_similarity(source, chats, settings, tmp_path / "out.json")["result"]
    assert (result["documents"], result["num_hidden_layers"], result["tokens"]) == (4, 6, 4 * 20)
    assert len(result["simscore"]) == len(result["simscore_stderr"]) == 5 and all(result["simscore_stderr"])
