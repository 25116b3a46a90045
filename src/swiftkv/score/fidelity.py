"""How close a variant stays to its teacher on held-out chats: KL, top-1 agreement, perplexity.

Accuracy on a few hundred questions cannot see a one-point gap; these have tight error bars.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from swiftkv.data.read import choose_chats, tokenize
from swiftkv.errors import UserError
from swiftkv.models import load_any, load_base, rewire
from swiftkv.quantize import new_cache
from swiftkv.records import provenance, read_json, write_json
from swiftkv.score.run import describe_spec, identity
from swiftkv.spec import SwiftKVSpec

POSITIONS = 128  # logits of so many positions are in memory at once


@torch.inference_mode()
def hidden_states(model: PreTrainedModel, document: list[int], kv_cache: str) -> torch.Tensor:
    """Final hidden states [tokens, hidden] of one document under a KV cache "auto" or "fp8"."""
    row = torch.tensor([document], device=model.device)
    # Without quantisation a single pass reads nothing back from a cache.
    cache = None if kv_cache == "auto" else new_cache(kv_cache, model.config)
    return model.base_model(row, past_key_values=cache, use_cache=cache is not None).last_hidden_state[0]


@torch.inference_mode()
def compare(
    teacher: torch.Tensor, students: list[torch.Tensor], head: torch.nn.Module, document: list[int]
) -> list[tuple[float, float, float]]:
    """Sums over the positions of one document that have a next token, for each student.

    Args:
        teacher: final hidden states [tokens, hidden].
        students: the same of each student; the teacher's own tensor stands for a student equal to it.
        head: the LM head, which teacher and students share.
        document: token ids.

    Returns:
        For each student KL(teacher || student) at temperature 1 in nats, positions where both have the same most likely
        token, and the student's negative log-likelihood of the next tokens in nats. Softmax is float32.
    """
    target = torch.tensor(document[1:], device=teacher.device)
    sums = torch.zeros(len(students), 3, dtype=torch.float64)
    for begin in range(0, len(target), POSITIONS):
        part = slice(begin, min(begin + POSITIONS, len(target)))
        wanted = target[part]
        log_p = head(teacher[part]).float().log_softmax(dim=-1)
        p, best = log_p.exp(), log_p.argmax(dim=-1)
        for number, student in enumerate(students):
            if student is teacher:
                nll = -log_p.gather(1, wanted[:, None])[:, 0]
                kl, agreed = torch.zeros_like(nll), torch.ones_like(nll)
            else:
                log_q = head(student[part]).float().log_softmax(dim=-1)
                nll = -log_q.gather(1, wanted[:, None])[:, 0]
                agreed = log_q.argmax(dim=-1) == best
                # Differences first: a small KL must not be what is left of two large sums.
                kl = (log_p - log_q).mul_(p).sum(dim=-1)
            sums[number] += torch.stack([row.double().sum() for row in (kl, agreed, nll)]).cpu()
    return [tuple(row) for row in sums.tolist()]


def ratio(sums: list[float], counts: list[int]) -> dict[str, Any]:
    """Sum over sum, with its standard error over documents (linearised ratio estimator); None for one document."""
    n, total = len(sums), sum(counts)
    value = math.fsum(sums) / total
    squares = math.fsum((part - value * count) ** 2 for part, count in zip(sums, counts, strict=True))
    return {"value": value, "stderr": math.sqrt(squares * n / (n - 1)) / total if n > 1 else None, "n": n}


def summarise(rows: list[tuple[float, float, float]], counts: list[int]) -> dict[str, Any]:
    """KL in nats a token, top-1 agreement as a fraction, and perplexity (its error by the delta method)."""
    kl, agreed, nll = (ratio(list(column), counts) for column in zip(*rows, strict=True))
    perplexity = math.exp(nll["value"])
    error = None if nll["stderr"] is None else perplexity * nll["stderr"]
    return {
        "kl": kl,
        "top1_agreement": agreed,
        "perplexity": {"value": perplexity, "stderr": error, "n": nll["n"]},
    }


def measure_fidelity(
    model_source: Path,
    checkpoint: Path | None,
    variant: str,
    spec: dict | None,
    kv_cache: str,
    heldout: Path,
    documents: int,
    max_length: int,
    seed: int,
    output: Path,
) -> dict[str, Any]:
    """Compare a variant, and its rewired model before training, to the teacher and write the record.

    The teacher is the base model with its KV cache in its own dtype; each of its forward passes serves both. Every
    document is a row of its own, so no padding is counted.

    Args:
        model_source: the model's source.json.
        checkpoint: SwiftKV checkpoint; None compares the base model (with an FP8 cache, say) to itself.
        variant: name of the variant.
        spec: fields of its `SwiftKVSpec`; None for the base model.
        kv_cache: "auto" or "fp8", of the student.
        heldout: chats, one a line.
        documents: number of chats.
        max_length: tokens of a chat that count.
        seed: of the draw of chats.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged, or the spec cannot be.
    """
    started = time.monotonic()
    source = read_json(model_source)
    described = describe_spec(spec, source)
    if (spec is None) != (checkpoint is None):
        raise UserError("a SwiftKV variant needs both a spec and a checkpoint, the baseline neither")
    chats = choose_chats(heldout, documents, seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = load_base(source["path"]).to(device)
    models = {}
    if spec is not None:
        models = {"trained": load_any(checkpoint).to(device), "start": rewire(teacher, SwiftKVSpec(**spec)).eval()}
    elif kv_cache != "auto":
        models = {"trained": teacher}
    tokenizer = AutoTokenizer.from_pretrained(source["path"])
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models or ("trained",)}
    counts, head = [], teacher.get_output_embeddings()
    for number, chat in enumerate(chats, 1):
        document = tokenize(tokenizer, chat["messages"], max_length)
        if len(document) < 2:
            continue
        reference = hidden_states(teacher, document, "auto")
        students = [hidden_states(model, document, kv_cache) for model in models.values()] or [reference]
        for sums, row in zip(rows.values(), compare(reference, students, head, document), strict=True):
            sums.append(row)
        counts.append(len(document) - 1)
        if number % 10 == 0 or number == len(chats):
            print(f"fidelity of {variant}, KV cache {kv_cache}: {number} of {len(chats)} chats", flush=True)
    if not counts:
        raise UserError(f"no chat of {heldout} has two tokens; make it again")
    record = {
        "model": source["name"],
        "title": source["title"],
        "variant": variant,
        "spec": described,
        "kv_cache": kv_cache,
        **summarise(rows["trained"], counts),
        "start": None if spec is None else summarise(rows["start"], counts),
        "tokens": sum(counts),
        "documents": len(counts),
        "max_length": max_length,
        "seed": seed,
        "model_source": identity(source),
        "data_source": {"chats": Path(heldout).name, "sources": sorted({chat.get("source", "") for chat in chats})},
        "provenance": provenance(time.monotonic() - started),
    }
    write_json(output, record)
    return record
