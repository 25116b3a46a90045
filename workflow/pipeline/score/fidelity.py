"""How close a variant stays to its teacher on held-out chats: KL, top-1 agreement, perplexity.

Accuracy on a few hundred questions cannot see a one-point gap; these have tight error bars. They are of all positions, and KL
of those of last answers besides; answers that keep their own keys and values (own_key_values) have the latter alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from pipeline.config.settings import Fidelity
from pipeline.score.chats import ChatMeasurement, require_spec
from pipeline.statistics import ratio
from swiftkv.device import device_map
from swiftkv.errors import UserError
from swiftkv.models import load_base, load_sharing, rewire, spread
from swiftkv.quantize import Peak, new_cache
from swiftkv.spec import SwiftKVSpec
from swiftkv.start.fit import fitted_values
from swiftkv.start.moments import Moments

POSITIONS = 128  # logits of so many positions are in memory at once


@torch.inference_mode()
def hidden_states(
    model: PreTrainedModel, document: list[int], kv_cache: str, prompt: int, peak: Peak | None = None
) -> torch.Tensor:
    """Final hidden states [tokens, hidden] of one document, whose first `prompt` tokens are before its last answer.

    `kv_cache` is "auto" or "fp8", whose keys `peak` sees.
    """
    row = torch.tensor([document], device=model.device)
    # Without quantization a single pass reads nothing back from a cache.
    cache = None if kv_cache == "auto" else new_cache(kv_cache, model.config, peak)
    own = {"full_depth": answering(row, prompt)} if has_own(model) else {}
    return model.base_model(row, past_key_values=cache, use_cache=cache is not None, **own).last_hidden_state[0]


def has_own(model: PreTrainedModel) -> bool:
    """Whether its answers keep their own keys and values."""
    return getattr(model.config, "swiftkv_own_key_values", False)


def answering(row: torch.Tensor, prompt: int) -> torch.Tensor:
    """Which of the token ids [1, T] run all layers: the last of the prompt and those after it; bool [1, T]."""
    return torch.arange(row.shape[1], device=row.device)[None] >= prompt - 1


def share_lower_layers(first: PreTrainedModel, second: PreTrainedModel) -> bool:
    """Whether two rewired models compute the same below layer l, with the very same weights."""
    below = [
        [*model.model.embed_tokens.parameters(), *model.model.layers[: model.spec.num_key_value_layers].parameters()]
        for model in (first, second)
    ]
    return first.spec == second.spec and all(a is b for a, b in zip(*below, strict=True))


@torch.inference_mode()
def states_of_all(
    teacher: PreTrainedModel,
    models: dict[str, PreTrainedModel],
    document: list[int],
    kv_cache: str,
    prompt: int,
    peak: Peak,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Final hidden states [tokens, hidden] of one document: the teacher's, and each model's.

    A trained model, its start and the teacher have the layers below l in common, which then run once.
    """
    start, trained = models.get("start"), models.get("trained")
    if start is None or kv_cache != "auto" or not share_lower_layers(start, trained):
        students = [hidden_states(model, document, kv_cache, prompt, peak) for model in models.values()]
        return hidden_states(teacher, document, "auto", prompt), students
    row = torch.tensor([document], device=start.device)
    state = replace(start.model.forward_lower(row), full_depth=answering(row, prompt))
    reference = start.model.forward_upper(state, student=False)[0][0]
    return reference, [model.model.forward_upper(state, student=True)[0][0] for model in models.values()]


@torch.inference_mode()
def compare(
    teacher: torch.Tensor,
    students: list[tuple[torch.Tensor, torch.nn.Module]],
    head: torch.nn.Module,
    document: list[int],
) -> torch.Tensor:
    """Each position of one document that has a next token, for each student.

    Args:
        teacher: final hidden states [tokens, hidden].
        students: the same of each student, with its LM head; the teacher's own tensor stands for a student equal to it.
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
        next_tokens = target[part]
        log_p = head(teacher[part].to(device)).float().log_softmax(dim=-1)
        p, best = log_p.exp(), log_p.argmax(dim=-1)
        for number, (student, own_head) in enumerate(students):
            if student is teacher:
                nll = -log_p.gather(1, next_tokens[:, None])[:, 0]
                kl, agreed = torch.zeros_like(nll), torch.ones_like(nll)
            else:
                log_q = own_head(student[part].to(own_head.weight.device)).to(device).float().log_softmax(dim=-1)
                nll = -log_q.gather(1, next_tokens[:, None])[:, 0]
                agreed = log_q.argmax(dim=-1) == best
                # Differences first: a small KL must not be what is left of two large sums.
                kl = (log_p - log_q).mul_(p).sum(dim=-1)
            found[number, part] = torch.stack([row.double() for row in (kl, agreed, nll)], dim=-1).cpu()
    return found


def summarize(rows: Sequence[torch.Tensor], counts: Sequence[int]) -> dict[str, Any]:
    """KL in nats a token, top-1 agreement as a fraction, and perplexity (its error by the delta method).

    Args:
        rows: for each text the sums over its positions of what `compare` finds, [3].
        counts: so many positions.
    """
    kl, agreed, nll = (ratio(column, counts) for column in torch.stack(list(rows)).T.tolist())
    perplexity = math.exp(nll["value"])
    error = None if nll["stderr"] is None else perplexity * nll["stderr"]
    return {
        "kl": kl,
        "top1_agreement": agreed,
        "perplexity": {"value": perplexity, "stderr": error, "n": nll["n"]},
    }


def closeness(found: Sequence[torch.Tensor], prompts: Sequence[int], own: bool = False) -> dict[str, Any]:
    """What `summarize` says of all positions, or nothing of them with `own`; answer_kl is the KL of those of answers, if any.

    Args:
        found: `compare` of each chat, [positions, 3].
        prompts: tokens of each chat before its last answer.
        own: whether only answers have been computed as they would be served.
    """
    every = {} if own else summarize([rows.sum(0) for rows in found], [len(rows) for rows in found])
    ends = [(rows[prompt - 1 :], prompt) for rows, prompt in zip(found, prompts, strict=True) if prompt <= len(rows)]
    answers = summarize([rows.sum(0) for rows, _ in ends], [len(rows) for rows, _ in ends])["kl"] if ends else None
    return every | {"answer_kl": answers}


def load_models(
    folder: Path, checkpoint: Path | None, spec: SwiftKVSpec | None, kv_cache: str, moments: Path | None
) -> tuple[PreTrainedModel, dict[str, PreTrainedModel]]:
    """The teacher, and what is compared to it: "trained", and "start", a rewired model before training.

    All share the teacher's weights as far as they have them, so a SwiftKV variant costs little more than the teacher;
    a model fine-tuned as a whole costs as much again. They are spread over all GPUs there are.

    Args:
        folder: the ordinary checkpoint.
        checkpoint, spec, kv_cache, moments: as in `measure_fidelity`.

    Raises:
        UserError: a checkpoint cannot be loaded or is of another spec, or the GPUs are too few for the model.
    """
    teacher = load_base(folder, device_map=device_map())
    if spec is not None:
        values = None
        if moments is not None:
            values = fitted_values(teacher, spec, Moments.read(moments, spec.num_key_value_layers))
        start = spread(rewire(teacher, spec, values).eval(), teacher)
        trained = load_sharing(checkpoint, teacher)
        require_spec(checkpoint, trained.spec, spec)
        return teacher, {"trained": trained} | ({"start": start} if kv_cache == "auto" else {})
    if checkpoint is not None:
        return teacher, {"trained": load_base(checkpoint, device_map=device_map())}
    return teacher, {} if kv_cache == "auto" else {"trained": teacher}


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

    The teacher is the model itself with its KV cache in its own dtype; each of its forward passes serves both. Every
    document is a row of its own, so no padding is counted. The result has kl, top1_agreement and perplexity, each with
    value, stderr and n, which a model with own_key_values has not, and answer_kl, over the last answers alone; start, the
    same before training, for a rewired model with an unquantized cache; tokens and documents; chats, the positions of each
    and what they add up to; and with an FP8 cache fp8_keys, as `swiftkv.quantize.Peak` finds them.

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
    if spec is not None and checkpoint is None:
        raise UserError("a SwiftKV variant needs a checkpoint; only a model that is not rewired can be without")
    measured = ChatMeasurement(model_source, heldout, settings)
    teacher, models = load_models(Path(measured.model["path"]), checkpoint, spec, kv_cache, moments)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in models or ("trained",)}
    head, peak = teacher.get_output_embeddings(), Peak()
    prompts = measured.prompts()
    for number, (document, prompt) in enumerate(zip(measured.documents, prompts, strict=True), 1):
        reference, states = states_of_all(teacher, models, document, kv_cache, prompt, peak)
        heads = [model.get_output_embeddings() for model in models.values()]
        students = list(zip(states, heads, strict=True)) or [(reference, head)]
        for positions, rows in zip(compare(reference, students, head, document), found.values(), strict=True):
            rows.append(positions)
        if number % 10 == 0 or number == len(measured.documents):
            print(
                f"fidelity of {variant}, KV cache {kv_cache}: {number} of {len(measured.documents)} chats", flush=True
            )
    own = spec is not None and spec.own_key_values
    counts = [len(document) - 1 for document in measured.documents]
    close = {name: closeness(rows, prompts, own) for name, rows in found.items()}
    columns = torch.stack([rows.sum(0) for rows in found["trained"]]).T.tolist()
    chats = {"positions": counts, **dict(zip(("kl", "top1_agreement", "nll"), columns, strict=True))}
    result = close["trained"] | {
        "start": close.get("start"),
        "tokens": sum(counts),
        "documents": len(counts),
        **({} if own else {"chats": chats}),
        **({"fp8_keys": keys} if (keys := peak.found()) else {}),
    }
    record = measured.write("fidelity", result, output, variant, checkpoint, spec, kv_cache)
    peak.warn()
    print(", ".join(f"{name} {value['value']:.4f}" for name, value in close["trained"].items() if value), flush=True)
    return record
