"""KV caches that drop tokens, without any training: what they cost in closeness, beside AcrossKV, which shares caches.

Written from the methods' descriptions:

* window: the first few tokens ("sinks") and the latest ones stay. StreamingLLM, Xiao et al., ICLR 2024. Tokens keep their
  positions, as chats here are no longer than what the models were trained on.
* attention: the latest tokens stay, and of the others those that received most attention so far, in each KV head and layer
  by itself; half of the cache is for either. H2O, Zhang et al., NeurIPS 2023.

The cache is as long as a share of the tokens so far, and a new token sees what it holds and itself. So at every position of a
chat the model is the one that would decode there with that share of the cache, from the first token on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from swiftkv.device import device_map
from swiftkv.models import load_base
from swiftkv.score.chats import ChatMeasurement
from swiftkv.score.fidelity import closeness, compare, hidden_states

NAME = "evicting"
POLICIES = ("window", "attention")


@dataclass(frozen=True)
class Eviction:
    """Which tokens a cache holds.

    Attributes:
        policy: one of `POLICIES`.
        share: of all tokens so far, that stay; 1 keeps all.
        sinks: first tokens that a window always keeps.
    """

    policy: Literal["window", "attention"]
    share: float
    sinks: int

    def held(self, tokens: int) -> int:
        """How many of so many tokens the cache holds, the newest among them."""
        return min(tokens, max(self.sinks + 1, math.ceil(self.share * tokens)))

    def weights(self, logits: torch.Tensor) -> torch.Tensor:
        """Attention weights of causal attention logits.

        Args:
            logits: float32 [KV heads, query heads of each, tokens, tokens]; those of later tokens count for nothing.

        Returns:
            The same shape; 0 for tokens that come later or were dropped before.
        """
        if self.policy == "attention":
            return self._by_attention(logits)
        place = torch.arange(logits.shape[-1], device=logits.device)
        latest = torch.tensor([self.held(number) - self.sinks for number in range(len(place))], device=logits.device)
        seen = (place < self.sinks) | (place >= (place - latest)[:, None])
        return logits.masked_fill(~seen | (place > place[:, None]), -math.inf).softmax(dim=-1)

    def _by_attention(self, logits: torch.Tensor) -> torch.Tensor:
        heads, _, tokens, _ = logits.shape
        weights = torch.zeros_like(logits)
        dropped = torch.zeros(heads, tokens, dtype=torch.bool, device=logits.device)
        received = torch.zeros(heads, tokens, device=logits.device)
        count = 0
        for number in range(tokens):
            end = number + 1
            row = logits[:, :, number, :end].masked_fill(dropped[:, None, :end], -math.inf).softmax(dim=-1)
            weights[:, :, number, :end] = row
            received[:, :end] += row.sum(1)
            count += 1
            if count > (held := self.held(end)):  # by one at most, as one token comes at a time
                older = end - held // 2
                candidates = received[:, :older].masked_fill(dropped[:, :older], math.inf)
                dropped.scatter_(1, candidates.argmin(dim=-1, keepdim=True), True)
                count = held
        return weights


def evicting_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of one whole text with a cache that `module.eviction` makes smaller.

    Args:
        module: the attention module.
        query: [1, heads, tokens, head size].
        key, value: [1, KV heads, tokens, head size]; the values' size may be another.
        attention_mask: not looked at.
        scaling: factor of the attention logits; None is head size ** -0.5.

    Returns:
        [1, tokens, heads, value head size] and None.
    """
    _, heads, tokens, size = query.shape
    grouped = query[0].unflatten(0, (key.shape[1], -1)).float()
    logits = grouped @ key[0, :, None].float().mT * (size**-0.5 if scaling is None else scaling)
    weights = module.eviction.weights(logits)
    output = (weights.to(value.dtype) @ value[0, :, None]).flatten(0, 1)
    return output.transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(NAME, evicting_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def evicting(model: PreTrainedModel, eviction: Eviction) -> Iterator[None]:
    """Within it the model attends to what is left of a cache; for one text at a time, from its first token."""
    before = model.config._attn_implementation
    for layer in model.base_model.layers:
        layer.self_attn.eviction = eviction
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for layer in model.base_model.layers:
            del layer.self_attn.eviction


def measure_eviction(
    model_source: Path,
    heldout: Path,
    documents: int,
    max_length: int,
    seed: int,
    shares: Sequence[float],
    sinks: int,
    output: Path,
) -> dict[str, Any]:
    """Compare a model whose cache drops tokens to itself, on the chats of "fidelity", and write the measurement "eviction".

    The result has `caches`: for each policy and share, policy, share, held (the share of a chat's tokens that is in the
    cache at its end), kl, answer_kl, top1_agreement and perplexity with value, stderr and n; and tokens and documents.

    Args:
        model_source: the model's source.json.
        heldout: held-out chats, one a line.
        documents: how many of them are drawn.
        max_length: tokens of a chat that count.
        seed: decides which chats are drawn.
        shares: of the tokens, that stay in the cache.
        sinks: first tokens that a window always keeps.
        output: JSON file.

    Raises:
        UserError: a file is missing or damaged.
    """
    measured = ChatMeasurement(model_source, heldout, documents, max_length, seed)
    model = load_base(measured.model["path"], device_map=device_map())
    expected = [hidden_states(model, document, "auto", len(document)) for document in measured.documents]
    head, lengths = model.get_output_embeddings(), [len(document) for document in measured.documents]
    caches = []
    for eviction in (Eviction(policy, share, sinks) for policy in POLICIES for share in shares):
        with evicting(model, eviction):
            rows = [
                compare(reference, [(hidden_states(model, document, "auto", len(document)), head)], head, document)[0]
                for reference, document in zip(expected, measured.documents, strict=True)
            ]
        found = closeness(rows, measured.prompts())
        named = {key: cell for key, cell in asdict(eviction).items() if key != "sinks"}
        caches.append({**named, "held": sum(map(eviction.held, lengths)) / sum(lengths), **found})
        print(f"{eviction.policy}, {eviction.share:g} of the cache: KL {found['kl']['value']:.4f}", flush=True)
    result = {"caches": caches, "tokens": sum(lengths) - len(lengths), "documents": len(lengths)}
    return measured.write("eviction", result, output, shares=list(shares), sinks=sinks)
