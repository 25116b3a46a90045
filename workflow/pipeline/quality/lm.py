"""The lm-eval model: Hugging Face's with the KV cache of our choice, which computes no prompt of a choice twice.

Of log-likelihoods, the common start of all prompts runs once and its KV cache is reused; answers of one question share its
tokens too, packed as a tree into one row whose attention mask lets each token see its own ancestors only. The numbers are
those of separate rows, up to the order in which floating-point sums are taken.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm
from transformers import AttentionInterface, DynamicCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from pipeline.quality import BROKEN
from pipeline.records import KeptAnswers
from swiftkv.chats import TEMPLATE_ARGUMENTS, padding_id
from swiftkv.errors import UserError
from swiftkv.quantize.kv_cache import Peak, new_cache

Request = tuple[Any, list[int], list[int]]  # strings, context tokens, continuation tokens
NODES = {"cpu": 256, "cuda": 2048}  # of a tree, about: so many tokens run in one forward pass
SCORES = 2**19  # attention scores in flight: what stays in a core's cache


class CachedLM(HFLM):
    """HFLM over a model already in memory that attends to keys and values as a KV cache returns them, and keeps answers.

    Args:
        model: language model of transformers, ordinary or SwiftKV.
        tokenizer: its tokenizer.
        kv_cache: "auto" or "fp8".
        options: further ones of HFLM, such as `batch_size`.

    Attributes:
        kept: the answers found again and kept.
        peak: the largest key that an FP8 cache was given.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kv_cache: str = "auto", **options: Any
    ) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", **options)
        model.set_attn_implementation("grouped")
        # The task decides how long answers are and how tokens are chosen; the model's limits and penalties would win over it.
        model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
        self.tokenizer.pad_token_id = padding_id(self.tokenizer, model.config.vocab_size)
        self.kv_cache = kv_cache
        self.chat_template_args = TEMPLATE_ARGUMENTS
        self.kept, self.peak = KeptAnswers(), Peak()

    def _new_cache(self) -> DynamicCache:
        return new_cache(self.kv_cache, self.model.config, self.peak)

    def _answer(self, inputs: list[Any], compute: Callable[[], Any]) -> Any:
        answer, keys = self.kept.answer(inputs, lambda: (compute(), self.peak.found()))
        self.peak.include(keys)
        return answer

    @torch.inference_mode()
    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Return for each request the log-probability of its continuation in nats, and whether that is the greedy one.

        Raises:
            UserError: a log-probability is not finite.
        """
        rows = []  # tokens fed to the model, and the last tokens of the continuation, which are scored
        for _strings, context, continuation in requests:
            fed = (context + continuation)[-(self.max_length + 1) :][:-1]
            rows.append((fed, continuation[-len(fed) :]))
        window = getattr(self.model.config, "sliding_window", None)
        if window and max(len(fed) for fed, _ in rows) > window:
            raise UserError(
                f"a prompt is longer than the model's sliding window of {window} tokens; score shorter ones"
            )
        order = sorted(range(len(rows)), key=lambda number: rows[number][0])  # neighbors share most
        # A position that is scored has to be computed, so it must not be in the common start.
        most = min(len(fed) - len(continuation) for fed, continuation in rows)
        common = os.path.commonprefix([fed for fed, _ in rows])[:most]
        start, answers = self._prefill(common), [(0.0, False)] * len(rows)
        tree, batch = TokenTree(len(common)), []
        for number in tqdm(order, "log-likelihoods", disable=disable_tqdm, mininterval=5):
            fed, continuation = rows[number]
            unscored = len(fed) - len(continuation) - len(common)
            batch.append((number, tree.add(fed[len(common) :], unscored)[unscored:], continuation))
            if len(tree.tokens) >= NODES[self.device.type] or number == order[-1]:
                inputs = [common, *([rows[number] for number, *_ in batch])]
                found = self._answer(inputs, lambda tree=tree, batch=batch: self._score(tree, start, batch))
                for (number, *_), (value, greedy) in zip(batch, found, strict=True):
                    if not math.isfinite(value):
                        raise UserError(f"a log-likelihood is {value}: {BROKEN}")
                    answers[number] = value, greedy
                tree, batch = TokenTree(len(common)), []
        return answers

    def _prefill(self, tokens: list[int]) -> DynamicCache:
        cache = self._new_cache()
        if tokens:
            row = torch.tensor([tokens], device=self.device)
            if hasattr(self.model, "swiftkv_parameters"):  # none of it runs all layers
                self.model.model.fill_upper_cache(self.model.model.forward_lower(row, past_key_values=cache))
            else:
                self.model(row, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def _score(
        self, tree: TokenTree, start: DynamicCache, batch: list[tuple[int, list[int], list[int]]]
    ) -> list[tuple[float, bool]]:
        """Answer continuations, each given as its number, the path of its nodes through the tree and its tokens."""
        nodes = sorted({node for _, path, _ in batch for node in path})
        logits = self.model(
            input_ids=torch.tensor([tree.tokens], device=self.device),
            position_ids=torch.tensor([tree.positions], device=self.device),
            attention_mask=tree.mask(self.device),
            past_key_values=_fork(start),
            use_cache=True,
            logits_to_keep=nodes,  # a list, which stays where a model spread over several GPUs needs it
        ).logits[0]
        # In the logits' bfloat16 a sum of -100 nats has steps of half a nat.
        logits, place = logits.float(), {node: number for number, node in enumerate(nodes)}
        total, best, answers = logits.logsumexp(dim=-1), logits.argmax(dim=-1), []
        for _, path, tokens in batch:
            scored = [place[node] for node in path]
            value = (logits[scored, tokens] - total[scored]).double().sum().item()
            answers.append((value, best[scored].tolist() == tokens))
        return answers

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **arguments: Any
    ) -> torch.Tensor:
        """Generate as HFLM does, [batch, tokens] padded on the left -> [batch, tokens + generated].

        Raises:
            UserError: a logit is NaN.
        """
        mask, generate = arguments.pop("attention_mask"), super()._model_generate
        inputs = [context.tolist(), mask.tolist(), max_length, stop, arguments]
        options = {"attention_mask": mask, "past_key_values": self._new_cache(), "logits_processor": [_no_nan]}
        begin = context.shape[1]
        with torch.inference_mode():
            added = self._answer(
                inputs, lambda: generate(context, max_length, stop, **arguments, **options)[:, begin:].tolist()
            )
        return torch.cat([context, context.new_tensor(added)], dim=1)


def _no_nan(_tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Refuse NaN among logits, of which generation would take the first; a logits processor that changes nothing."""
    if logits.isnan().any():
        raise UserError(f"the logits of an answer are NaN: {BROKEN}")
    return logits


class TokenTree:
    """Token sequences merged by common starts; nodes in the order they were added, after a start of `depth` tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self._parents: list[int] = []
        self._nodes: dict[tuple[int, int, bool], int] = {}

    def add(self, tokens: list[int], unscored: int) -> list[int]:
        """Add a sequence and return its path of nodes, one a token; none is scored for one and not for the other."""
        path, parent = [], -1
        for step, token in enumerate(tokens):
            node = self._nodes.setdefault((parent, token, step >= unscored), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.positions.append(self.depth + step)
                self._parents.append(parent)
            path.append(node)
            parent = node
        return path

    def mask(self, device: torch.device) -> torch.Tensor:
        """[1, 1, nodes, depth + nodes], True where a node (row) sees a token (column): the start, ancestors, itself."""
        seen = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self._parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return torch.nn.functional.pad(seen, (self.depth, 0), value=True)[None, None].to(device)


def _fork(cache: DynamicCache) -> DynamicCache:
    """A cache that can be extended without extending `cache`; the tensors are shared, never written to in place."""
    forked = copy.copy(cache)
    forked.layers = [copy.copy(layer) for layer in cache.layers]
    return forked


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **arguments,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention of one row for inference, which reads grouped keys and values in place.

    transformers' sdpa function copies every KV head once for each of its query heads whenever there is a mask. Here the
    query heads of a group become rows of one product with their KV head. Products are in the model's dtype, softmax is
    float32, as in transformers' eager attention. Several rows, a row without a mask, and GPUs, whose kernels keep scores
    in float32, are left to sdpa.

    Args:
        query: [batch, heads, queries, head size].
        key, value: [batch, KV heads, keys, head size]; the values' size may be another.
        attention_mask: bool, True = attend, [1, 1, queries, keys], or None; every query attends to something.
        scaling: factor of the attention scores; None is head size ** -0.5.

    Returns:
        [batch, queries, heads, value head size] and None.
    """
    if query.device.type != "cpu" or attention_mask is None or attention_mask.dtype != torch.bool or len(query) > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    _, heads, queries, size = query.shape
    kv_heads, keys = key.shape[1:3]
    rows = query.reshape(kv_heads, -1, size)
    pieces = max(1, SCORES // (rows.shape[1] * keys))
    output = []
    for own, theirs, values in zip(*(part.split(pieces) for part in (rows, key[0], value[0])), strict=True):
        scores = (own @ theirs.mT).float().mul_(size**-0.5 if scaling is None else scaling)
        scores.view(len(own), -1, queries, keys).masked_fill_(~attention_mask[0], -torch.inf)
        output.append(scores.softmax(dim=-1).to(value.dtype) @ values)
    return torch.cat(output).view(1, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register("grouped", grouped_attention)
AttentionMaskInterface.register("grouped", sdpa_mask)
