"""How close a variant stays to its teacher on held-out chats: KL, top-1 agreement, perplexity.

Accuracy on a few hundred questions cannot see a one-point gap; these have tight error bars. They are of all positions, and
there is the KL of last answers besides; a model whose answers keep their own keys and values has the latter alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from pipeline.config.settings import Fidelity
from pipeline.quality.chat_measurement import ChatMeasurement, require_spec
from pipeline.statistics import ratio
from swiftkv.device import device_map
from swiftkv.distill.fit import fitted_values
from swiftkv.distill.moments import Moments
from swiftkv.models import load_base, load_sharing, rewire, spread
from swiftkv.quantize.kv_cache import Peak, new_cache
from swiftkv.spec import SwiftKVSpec

POSITIONS = 128  # logits of so many positions are in memory at once


@torch.inference_mode()
def hidden_states(model: PreTrainedModel, document: list[int], kv_cache: str, prompt: int, peak: Peak) -> torch.Tensor:
    """Return final hidden states [tokens, hidden] of one document, in which `prompt` tokens precede the last answer."""
    row = torch.tensor([document], device=model.device)
    # Without quantization a single pass reads nothing back from a cache.
    cache = None if kv_cache == "auto" else new_cache(kv_cache, model.config, peak)
    own = {}
    if getattr(model.config, "swiftkv_own_key_values", False):
        # The last token of the prompt and those after it run all layers.
        own["full_depth"] = torch.arange(row.shape[1], device=row.device)[None] >= prompt - 1
    return model.base_model(row, past_key_values=cache, use_cache=cache is not None, **own).last_hidden_state[0]


@torch.inference_mode()
def compare_positions(
    teacher: torch.Tensor,
    students: list[tuple[torch.Tensor, torch.nn.Module]],
    head: torch.nn.Module,
    document: list[int],
) -> torch.Tensor:
    """Compare each student with the teacher at each position of one document that has a next token.

    Args:
        teacher: final hidden states [tokens, hidden].
        students: the same of each student, with its LM head.
        head: the teacher's LM head.
        document: token ids.

    Returns:
        Float64 [students, positions, 3]: KL(teacher || student) at temperature 1 in nats, whether both have the same most
        likely token, and the student's negative log-likelihood of the next token in nats. Softmax is float32.
    """
    device = head.weight.device  # of models spread over GPUs, all parts may lie on others
    target = torch.tensor(document[1:], device=device)
    found = torch.zeros(len(students), len(target), 3, dtype=torch.float64)
    for begin in range(0, len(target), POSITIONS):
        part = slice(begin, min(begin + POSITIONS, len(target)))
        log_p = head(teacher[part].to(device)).float().log_softmax(dim=-1)
        p, best = log_p.exp(), log_p.argmax(dim=-1)
        for number, (student, own_head) in enumerate(students):
            log_q = own_head(student[part].to(own_head.weight.device)).to(device).float().log_softmax(dim=-1)
            nll = -log_q.gather(1, target[part, None])[:, 0]
            agreed = log_q.argmax(dim=-1) == best
            # Differences first: a small KL must not be what is left of two large sums.
            kl = (log_p - log_q).mul_(p).sum(dim=-1)
            found[number, part] = torch.stack([row.double() for row in (kl, agreed, nll)], dim=-1).cpu()
    return found


def summarize(rows: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return KL in nats a token, top-1 agreement as a fraction, and perplexity (its error by the delta method).

    Args:
        rows: `compare` of each text, [positions, 3].
    """
    counts, sums = [len(part) for part in rows], torch.stack([part.sum(0) for part in rows])
    kl, agreed, nll = (ratio(column, counts) for column in sums.T.tolist())
    perplexity = math.exp(nll["value"])
    error = None if nll["stderr"] is None else perplexity * nll["stderr"]
    return {
        "kl": kl,
        "top1_agreement": agreed,
        "perplexity": {"value": perplexity, "stderr": error, "n": nll["n"]},
    }


def closeness(found: Sequence[torch.Tensor], prompts: Sequence[int], own: bool) -> dict[str, Any]:
    """Summarize all positions, unless `own`, and the KL of those of answers as `answer_kl`; None without answers.

    Args:
        found: `compare` of each chat, [positions, 3].
        prompts: tokens of each chat before its last answer.
        own: whether only answers were computed as they would be served.
    """
    ends = [rows[prompt - 1 :] for rows, prompt in zip(found, prompts, strict=True) if prompt <= len(rows)]
    return ({} if own else summarize(found)) | {"answer_kl": summarize(ends)["kl"] if ends else None}


def untrained(teacher: PreTrainedModel, spec: SwiftKVSpec, moments: Path | None) -> PreTrainedModel:
    """Rewire a teacher, whose weights are shared; with a file of `moments` the start is fitted to them."""
    fitted = moments and fitted_values(teacher, spec, Moments.read(moments, spec.num_key_value_layers))
    return spread(rewire(teacher, spec, fitted).eval(), teacher)


def measure_fidelity(
    model_source: Path,
    checkpoint: Path | None,
    variant: str,
    spec: SwiftKVSpec | None,
    kv_cache: Literal["auto", "fp8"],
    heldout: Path,
    settings: Fidelity,
    output: Path,
    moments: Path | None = None,
) -> dict[str, Any]:
    """Compare a variant, and its rewired model before training, to the teacher and write the measurement "fidelity".

    The teacher is the model itself with its KV cache in its own dtype; one forward pass of it serves both. Every document
    is a row of its own, so no padding is counted. The result has kl, top1_agreement and perplexity, each with value, stderr
    and n, which a model with own_key_values has not; answer_kl, over the last answers alone; start, the same before
    training, for a rewired model with an unquantized cache; tokens and documents; chats, the positions of each and their
    sums; and with an FP8 cache fp8_keys, as `swiftkv.quantize.kv_cache.Peak` finds them.

    Args:
        model_source: the model's source.json.
        checkpoint: trained checkpoint; None compares the model (with an FP8 cache, say) to itself.
        variant: name of the variant.
        spec: the variant's rewiring; None where nothing is rewired.
        kv_cache: "auto" or "fp8", of the student.
        heldout: chats, one a line.
        settings: which chats are drawn, and how much of each counts.
        output: JSON file.
        moments: what a fitted start was fitted to; None for a copied one.

    Raises:
        UserError: a file is missing or damaged, or the spec cannot be.
    """
    measured = ChatMeasurement(model_source, heldout, settings)
    teacher = load_base(measured.model["path"], device_map=device_map())
    # Rewired models share the teacher's weights; one fine-tuned as a whole costs as much memory again.
    if spec is None:
        models = {"trained": load_base(checkpoint, device_map=device_map()) if checkpoint else teacher}
    else:
        models = {"trained": load_sharing(checkpoint, teacher)}
        require_spec(checkpoint, models["trained"].spec, spec)
        if kv_cache == "auto":
            models["start"] = untrained(teacher, spec, moments)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    peak, prompts = Peak(), measured.prompts()
    for number, (document, prompt) in enumerate(zip(measured.documents, prompts, strict=True), 1):
        reference, students = hidden_states(teacher, document, "auto", prompt, peak), []
        for model in models.values():
            same = model is teacher and kv_cache == "auto"
            states = reference if same else hidden_states(model, document, kv_cache, prompt, peak)
            students.append((states, model.get_output_embeddings()))
        compared = compare_positions(reference, students, teacher.get_output_embeddings(), document)
        for positions, rows in zip(compared, found.values(), strict=True):
            rows.append(positions)
        if number % 10 == 0 or number == len(prompts):
            print(f"fidelity of {variant}, KV cache {kv_cache}: {number} of {len(prompts)} chats", flush=True)
    own = spec is not None and spec.own_key_values
    counts = [len(document) - 1 for document in measured.documents]
    close = {name: closeness(rows, prompts, own) for name, rows in found.items()}
    result = close["trained"] | {"start": close.get("start"), "tokens": sum(counts), "documents": len(counts)}
    if not own:
        kl, agreed, nll = torch.stack([rows.sum(0) for rows in found["trained"]]).T.tolist()
        result["chats"] = {"positions": counts, "kl": kl, "top1_agreement": agreed, "nll": nll}
    if keys := peak.found():
        result["fp8_keys"] = keys
    record = measured.write("fidelity", result, output, variant, checkpoint, spec, kv_cache)
    peak.warn()
    print(", ".join(f"{name} {value['value']:.4f}" for name, value in close["trained"].items() if value), flush=True)
    return record
