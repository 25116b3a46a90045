"""Similarity of the layers' inputs (Eq. 1; Figures 2 left and A.1)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from swiftkv.data.read import choose_chats, tokenize
from swiftkv.models import load_base
from swiftkv.records import provenance, read_json, write_json
from swiftkv.score.run import identity


@torch.inference_mode()
def layer_similarity(model: PreTrainedModel, documents: list[list[int]]) -> tuple[torch.Tensor, int]:
    """Average cosine similarity between the inputs of every two layers.

    The input of layer i is the residual stream entering it, before its norm; layer 0's are the token embeddings.

    Args:
        model: language model of transformers with L layers, any dtype.
        documents: token ids, each run by itself.

    Returns:
        Float64 matrix [L, L]: mean over all tokens of cos(x_i, x_j); and the number of tokens. Vectors are normalized
        and multiplied in float32, sums over documents are float64.
    """
    layers = model.config.num_hidden_layers
    total, tokens = torch.zeros(layers, layers, dtype=torch.float64, device=model.device), 0
    for number, document in enumerate(documents, 1):
        row = torch.tensor([document], device=model.device)
        states = model.base_model(row, use_cache=False, output_hidden_states=True).hidden_states[:layers]
        unit = torch.stack(
            [torch.nn.functional.normalize(state[0].float(), dim=-1).to(model.device) for state in states]
        )
        unit = unit.flatten(1)  # [L, tokens * hidden]: one product sums over tokens as well
        total += (unit @ unit.T).double()
        tokens += len(document)
        if number % 10 == 0 or number == len(documents):
            print(f"similarity: {number} of {len(documents)} chats", flush=True)
    return (total / tokens).cpu(), tokens


def simscores(pairwise: torch.Tensor) -> list[float]:
    """Eq. 1 from the pairwise matrix [L, L]: entry l is the mean of row l over the later layers' inputs l+1 .. L-1.

    With layers counted from 0 there are L - 1 entries, l = 0 .. L - 2: the last layer has no later one.
    """
    layers = len(pairwise)
    return [pairwise[layer, layer + 1 :].mean().item() for layer in range(layers - 1)]


def measure_similarity(
    model_source: Path, data: Path, documents: int, max_length: int, seed: int, output: Path
) -> dict[str, Any]:
    """Measure Eq. 1 on chats drawn from `data` and write the record.

    Args:
        model_source: the model's source.json.
        data: chats, one a line; the paper takes 50 random training examples of ultrachat_200k.
        documents: number of chats.
        max_length: tokens of a chat that count.
        seed: of the draw.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged.
    """
    started = time.monotonic()
    source = read_json(model_source)
    chats = choose_chats(data, documents, seed)
    model = load_base(source["path"], device_map="auto" if torch.cuda.is_available() else None)
    tokenizer = AutoTokenizer.from_pretrained(source["path"])
    pairwise, tokens = layer_similarity(model, [tokenize(tokenizer, chat["messages"], max_length) for chat in chats])
    record = {
        "model": source["name"],
        "title": source["title"],
        "num_hidden_layers": model.config.num_hidden_layers,
        "simscore": simscores(pairwise),
        "pairwise": pairwise.tolist(),
        "documents": len(chats),
        "tokens": tokens,
        "max_length": max_length,
        "seed": seed,
        "sources": sorted({chat.get("source", "") for chat in chats}),
        "model_source": identity(source),
        "provenance": provenance(time.monotonic() - started),
    }
    write_json(output, record)
    return record
