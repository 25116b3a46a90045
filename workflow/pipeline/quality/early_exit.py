"""Early exit (Appendices D.1 and E): agreement of its head with the full model, and answers decoded with it."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.config.settings import EarlyExit
from pipeline.prompts import chat_prompts, opening
from pipeline.quality import BROKEN
from pipeline.quality.chat_measurement import ChatMeasurement, require_spec
from pipeline.quality.fidelity import POSITIONS
from pipeline.statistics import ratio, share
from swiftkv.device import device_map
from swiftkv.errors import UserError
from swiftkv.models import load_swiftkv
from swiftkv.models.early_exit import Decoded, decode, early_logits, require_head
from swiftkv.spec import SwiftKVSpec

WAYS = ("early_exit", "full_depth")


@torch.inference_mode()
def agreement(model: PreTrainedModel, document: list[int], bins: int, threshold: float) -> torch.Tensor:
    """Count how often the early exit head and the full model have the same most likely token, by the head's confidence.

    Args:
        model: one with an early exit head.
        document: token ids; every position that has a next token counts.
        bins: number of equal bins of the head's largest probability, from 0 to 1.
        threshold: positions with a larger probability are counted once more.

    Returns:
        Float64 [2, bins + 1]: positions, and those of them where both agree; last, of all above the threshold.

    Raises:
        UserError: the model's outputs are not finite.
    """
    row = torch.tensor([document], device=model.device)
    state = model.model.forward_lower(row)
    hidden, _ = model.model.forward_upper(state, student=True)
    if not hidden.isfinite().all():
        raise UserError(f"the final states of a chat are not finite: {BROKEN}")
    sums = torch.zeros(2, bins + 1, dtype=torch.float64)
    for begin in range(0, len(document) - 1, POSITIONS):
        part = slice(begin, min(begin + POSITIONS, len(document) - 1))
        confidence, early = early_logits(model, state.hidden[:, part])[0].float().softmax(dim=-1).max(dim=-1)
        same = (model.lm_head(hidden[:, part])[0].argmax(dim=-1).cpu() == early.cpu()).double()
        confidence = confidence.cpu().double()
        places = (confidence * bins).long().clamp(max=bins - 1)
        sure = (confidence > threshold).double()
        for row, weights in zip(sums, (torch.ones_like(same), same), strict=True):
            row[:bins] += places.bincount(weights, bins)
            row[bins] += sure @ weights
    return sums


def summarize_agreement(sums: list[torch.Tensor]) -> dict[str, Any]:
    """Agreement as a fraction with standard errors over documents: of all positions, those above the threshold, each bin.

    Args:
        sums: `agreement` of every document.
    """
    positions, agreed = torch.stack(sums, dim=1)  # [documents, bins + 1] each
    bins = positions.shape[1] - 1

    def summary(columns: slice) -> dict[str, Any]:
        counts, same = positions[:, columns].sum(1).tolist(), agreed[:, columns].sum(1).tolist()
        return {"positions": int(sum(counts)), "agreement": share(same, counts) if any(counts) else None}

    parts = [{"confidence_from": n / bins, "confidence_to": (n + 1) / bins} for n in range(bins)]
    return {
        "all": summary(slice(bins)),
        "above_threshold": summary(slice(bins, None)),
        "bins": [part | summary(slice(n, n + 1)) for n, part in enumerate(parts)],
        "documents": len(sums),
    }


def answer_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    threshold: float,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    """Answer each prompt with early exit and at full depth, in alternating order after one warm-up.

    Returns:
        For each prompt its number of tokens; "early_exit" and "full_depth", each with tokens, exited, prefill_seconds,
        decode_seconds and text; and equal_tokens, the places where both answers have the same token.
    """
    rows = []
    for number, prompt in enumerate([prompts[0], *prompts]):
        order = WAYS[:: 1 if number % 2 else -1]
        runs = {
            name: decode(model, prompt, max_new_tokens, threshold if name == "early_exit" else None) for name in order
        }
        equal = sum(a == b for a, b in zip(*(runs[name].tokens for name in WAYS), strict=False))
        described = {name: _described(runs[name], tokenizer) for name in WAYS}
        rows.append({"prompt_tokens": len(prompt), **described, "equal_tokens": equal})
    return rows[1:]


def _described(run: Decoded, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    counts = {"tokens": len(run.tokens), "exited": sum(run.exited)}
    return vars(run) | counts | {"text": tokenizer.decode(run.tokens, skip_special_tokens=True).strip()}


def summarize_answers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum over answers; the first token of each is prefill's and neither exits nor counts in a time.

    Returns:
        exited: share of tokens that left at layer l.
        time_ratio: seconds a token with early exit over those at full depth, mean of the pairs.
        equal_tokens: share of places, of the longer answer, where both have the same token.
        seconds_per_token: with early exit and at full depth; prompts: their number. None where no answer has a second token.
    """
    # Both ways have the same first token, so that both end with it or neither does.
    timed = [row for row in rows if row["full_depth"]["tokens"] > 1]
    steps = {name: [row[name]["tokens"] - 1 for row in timed] for name in WAYS}
    seconds = {name: [row[name]["decode_seconds"] for row in timed] for name in WAYS}
    early, full = (map(operator.truediv, seconds[name], steps[name]) for name in WAYS)
    longest = [max(row[name]["tokens"] for name in WAYS) for row in rows]
    return {
        "exited": ratio([row["early_exit"]["exited"] for row in timed], steps["early_exit"]) if timed else None,
        "time_ratio": ratio(list(map(operator.truediv, early, full)), [1] * len(timed)) if timed else None,
        "equal_tokens": ratio([row["equal_tokens"] for row in rows], longest),
        "seconds_per_token": {name: sum(seconds[name]) / sum(steps[name]) if timed else None for name in WAYS},
        "prompts": len(rows),
    }


def measure_early_exit(
    model_source: Path,
    checkpoint: Path,
    variant: str,
    spec: SwiftKVSpec,
    heldout: Path,
    settings: EarlyExit,
    output: Path,
) -> dict[str, Any]:
    """Measure the early exit of a checkpoint and write the measurement "early_exit".

    Its result has "alignment", from `summarize_agreement`; "decoding", from `summarize_answers` over all prompts; and
    "answers" to the questions, from `answer_prompts`.

    Args:
        model_source: the model's source.json.
        checkpoint: trained checkpoint, with an early exit head.
        variant: name of the variant.
        spec: the variant's rewiring.
        heldout: chats, one a line.
        settings: chats, questions and how their answers are decoded.
        output: JSON file.

    Raises:
        UserError: the checkpoint has no early exit head or is of another spec, or a file is missing or damaged.
    """
    measured = ChatMeasurement(model_source, heldout, settings)
    model = load_swiftkv(checkpoint, device_map=device_map())
    require_head(model)
    require_spec(checkpoint, model.spec, spec)
    questions = [opening(measured.tokenizer, text) for text in settings.questions]
    prompts = chat_prompts(measured.model["path"], heldout, settings.max_length, settings.seed)
    prompts = questions + prompts[: settings.prompts]
    sums = [agreement(model, document, settings.bins, settings.threshold) for document in measured.documents]
    alignment = summarize_agreement(sums)
    print(f"early exit of {variant}: {len(sums)} chats, {alignment['all']['positions']} positions", flush=True)
    decoded = answer_prompts(model, measured.tokenizer, prompts, settings.threshold, settings.max_new_tokens)
    decoding = summarize_answers(decoded)
    answered = [{"question": text, **row} for text, row in zip(settings.questions, decoded, strict=False)]
    result = {"alignment": alignment, "decoding": decoding, "answers": answered}
    if (exited := decoding["exited"]) and (times := decoding["time_ratio"]):
        print(f"{exited['value']:.1%} of tokens exited, in {times['value']:.3f} of the time a token", flush=True)
    return measured.write(
        "early_exit", result, output, variant, checkpoint, spec, **settings.model_dump(), batch_size=1
    )
