"""Decoding that exits early (Appendices D.1 and E): a confident second head at layer l, and no layer above it is run.

The keys and values of layers l..L-1 come from s = norm_swiftkv(h_l) alone, so a token that skips these layers leaves the
same cache as one that ran them. The head predicts from s, as the paper's "input to SingleInputKV"; whether that input
is normed is not stated there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from swiftkv.errors import UserError


@dataclass(frozen=True)
class Decoded:
    """What was decoded after a prompt.

    Attributes:
        tokens: the new token ids, with the end-of-sequence token if one came.
        exited: for each of them, whether the early exit head predicted it; never the first, which prefill predicts.
        prefill_seconds: wall time until the first token.
        decode_seconds: wall time of all others.
    """

    tokens: list[int]
    exited: list[bool]
    prefill_seconds: float
    decode_seconds: float


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    prompt: list[int],
    max_new_tokens: int,
    threshold: float | None,
    past_key_values: Cache | None = None,
) -> Decoded:
    """Greedy decoding of one sequence.

    Prefill is the usual one. Each further token runs layers 0..l-1; if the early exit head's largest probability is then
    above `threshold`, its prediction is the next token and layers l..L-1 only get their keys and values.

    Args:
        model: a SwiftKV language model, in evaluation mode.
        prompt: token ids, at least one.
        max_new_tokens: at most so many; fewer if an end-of-sequence token comes.
        threshold: None decodes at full depth without asking the early exit head; above 1 it is asked and never heard.
        past_key_values: an empty cache to fill; None makes one.

    Raises:
        UserError: there is a threshold, and the model has no early exit head.
    """
    if threshold is not None:
        require_head(model)
    cache = DynamicCache(config=model.config) if past_key_values is None else past_key_values
    ends = _end_tokens(model)
    started = time.perf_counter()
    row = torch.tensor([prompt], device=model.device)
    logits = model(input_ids=row, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    tokens, exited = [int(logits[0, -1].argmax())], [False]
    prefilled = time.perf_counter()
    while len(tokens) < max_new_tokens and tokens[-1] not in ends:
        row = torch.tensor([tokens[-1:]], device=model.device)
        state = model.model.forward_lower(row, past_key_values=cache, use_cache=True)
        token = None if threshold is None else _exit(model, state.hidden, threshold)
        exited.append(token is not None)
        if token is None:
            hidden, _ = model.model.forward_upper(state, student=True)
            token = int(model.lm_head(hidden)[0, -1].argmax())
        else:
            model.model.fill_upper_cache(state)
        tokens.append(token)
    return Decoded(tokens, exited, prefilled - started, time.perf_counter() - prefilled)


def early_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of the early exit head [B, T, V], in the model's dtype, for the stream entering layer l [B, T, D]."""
    return model.early_exit_head_swiftkv(model.model.norm_swiftkv(hidden))


def require_head(model: PreTrainedModel) -> None:
    """Refuse a model that cannot exit early.

    Raises:
        UserError: it has no early exit head.
    """
    if not getattr(getattr(model, "spec", None), "early_exit", False):
        raise UserError(
            f"{model.name_or_path or 'the model'} has no early exit head; train a variant with early_exit: true"
        )


def _exit(model: PreTrainedModel, hidden: torch.Tensor, threshold: float) -> int | None:
    """The early exit head's token, if it is sure enough."""
    probability, token = early_logits(model, hidden)[0, -1].float().softmax(dim=-1).max(dim=-1)
    return int(token) if probability.item() > threshold else None


def _end_tokens(model: PreTrainedModel) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends} - {None}
