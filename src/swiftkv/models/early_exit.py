"""Early-exit decoding (Appendices D.1 and E): if a second head at layer l is confident, layers >= l are skipped.

The keys and values of layers >= l depend on s = norm_swiftkv(h_l) alone, so a token that skips these layers leaves the
same cache as one that ran them. The head predicts from s, the paper's "input to SingleInputKV"; the paper does not say
whether that input is normed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from swiftkv.errors import UserError


@dataclass(frozen=True)
class Decoded:
    """Result of `decode`.

    Attributes:
        tokens: new token ids, including an end-of-sequence token.
        exited: for each token, whether the early exit head predicted it; never the first, which prefill predicts.
        prefill_seconds: wall time until the first token.
        decode_seconds: wall time of the others.
    """

    tokens: list[int]
    exited: list[bool]
    prefill_seconds: float
    decode_seconds: float


@torch.inference_mode()
def decode(model: PreTrainedModel, prompt: list[int], max_new_tokens: int, threshold: float | None) -> Decoded:
    """Decode one sequence greedily.

    Each token after prefill runs layers < l. If the early exit head's largest probability then exceeds `threshold`, its
    prediction is the next token, and layers >= l only get their keys and values.

    Args:
        model: SwiftKV language model in evaluation mode.
        prompt: token ids, at least one.
        max_new_tokens: decoding stops here or at an end-of-sequence token.
        threshold: None decodes at full depth without the early exit head; above 1 it is computed but never used.

    Raises:
        UserError: `threshold` is given, but the model has no early exit head.
    """
    if threshold is not None:
        require_head(model)
    cache = DynamicCache(config=model.config)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    started = time.perf_counter()
    row = torch.tensor([prompt], device=model.device)
    logits = model(input_ids=row, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    tokens, exited = [int(logits[0, -1].argmax())], [False]
    prefilled = time.perf_counter()
    while len(tokens) < max_new_tokens and tokens[-1] not in ends:
        row = torch.tensor([tokens[-1:]], device=model.device)
        state = model.model.forward_lower(row, past_key_values=cache)
        probability, token = 0.0, None
        if threshold is not None:
            probability, token = early_logits(model, state.hidden)[0, -1].float().softmax(dim=-1).max(dim=-1)
        exited.append(threshold is not None and float(probability) > threshold)
        if exited[-1]:
            model.model.fill_upper_cache(state)
        else:
            hidden, _ = model.model.forward_upper(state, student=True)
            token = model.lm_head(hidden)[0, -1].argmax()
        tokens.append(int(token))
    return Decoded(tokens, exited, prefilled - started, time.perf_counter() - prefilled)


def early_logits(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Early exit head's logits [B, T, V] for the residual stream entering layer l [B, T, D], in the model's dtype."""
    return model.early_exit_head_swiftkv(model.model.norm_swiftkv(hidden))


def require_head(model: PreTrainedModel) -> None:
    """Raise a `UserError` if the model has no early exit head."""
    if not getattr(getattr(model, "spec", None), "early_exit", False):
        raise UserError(
            f"{model.name_or_path or 'the model'} has no early exit head; train a variant with early_exit: true"
        )
