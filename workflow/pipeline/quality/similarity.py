"""Similarity of the layers' inputs (Eq. 1; Figures 2 left and A.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from pipeline.config.settings import Fidelity
from pipeline.quality.chat_measurement import ChatMeasurement
from pipeline.statistics import ratio
from swiftkv.device import device_map
from swiftkv.models import load_base

CHUNK = 256  # tokens whose float32 vectors of all layers are in memory at once


@torch.inference_mode()
def layer_similarity(model: PreTrainedModel, documents: list[list[int]]) -> tuple[torch.Tensor, list[int]]:
    """Add up the cosine similarity between the inputs of every two layers over the tokens of each document.

    The input of layer i is the residual stream entering it, before its norm; layer 0's are the token embeddings.

    Args:
        model: language model of transformers with L layers, any dtype.
        documents: token ids, each run by itself.

    Returns:
        Float64 [documents, L, L], the sums over tokens of cos(x_i, x_j) in float32; and the tokens of each document.
    """
    layers = model.config.num_hidden_layers
    sums = torch.zeros(len(documents), layers, layers, dtype=torch.float64, device=model.device)
    for total, document in zip(sums, documents, strict=True):
        row = torch.tensor([document], device=model.device)
        states = model.base_model(row, use_cache=False, output_hidden_states=True).hidden_states[:layers]
        for begin in range(0, len(document), CHUNK):
            part = torch.stack([state[0, begin : begin + CHUNK].to(model.device) for state in states], dim=1)
            unit = torch.nn.functional.normalize(part.float(), dim=-1)  # [tokens, L, hidden]
            total += (unit @ unit.mT).double().sum(0)
    return sums.cpu(), [len(document) for document in documents]


def simscores(pairwise: torch.Tensor) -> list[float]:
    """Eq. 1 from the pairwise matrix [L, L]: entry l, of L - 1, is the mean of row l over the later layers' inputs l+1 .. L-1."""
    return [pairwise[layer, layer + 1 :].mean().item() for layer in range(len(pairwise) - 1)]


def simscore_errors(sums: torch.Tensor, tokens: list[int]) -> list[float | None]:
    """Standard error over documents of each of `simscores`, from the result of `layer_similarity`; None for one document."""
    return [ratio(scores, tokens)["stderr"] for scores in zip(*map(simscores, sums), strict=True)]


def measure_similarity(model_source: Path, data: Path, settings: Fidelity, output: Path) -> dict[str, Any]:
    """Measure Eq. 1 on chats drawn from `data` and write the measurement "similarity".

    Its result is simscore and simscore_stderr (L - 1 numbers each), pairwise ([L, L]), tokens, documents and
    num_hidden_layers.

    Args:
        model_source: the model's source.json.
        data: chats, one a line; the paper takes 50 random training examples of ultrachat_200k.
        settings: which chats are drawn, and how much of each counts.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged.
    """
    measured = ChatMeasurement(model_source, data, settings)
    model = load_base(measured.model["path"], device_map=device_map())
    sums, tokens = layer_similarity(model, measured.documents)
    pairwise = sums.sum(0) / sum(tokens)
    result = {
        "simscore": simscores(pairwise),
        "simscore_stderr": simscore_errors(sums, tokens),
        "pairwise": pairwise.tolist(),
        "tokens": sum(tokens),
        "documents": len(measured.documents),
        "num_hidden_layers": model.config.num_hidden_layers,
    }
    return measured.write("similarity", result, output)
