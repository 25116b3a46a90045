"""The lm-eval models: Hugging Face's with the KV cache of our choice, and one that computes no prompt token twice.

`CachedLM`, for GPUs, is HFLM but for the cache, log-probabilities in float32, and answers that are kept. `PrefixSharingLM`
makes few-shot prompts affordable on a CPU: the common start of all prompts runs once and its KV cache is reused; answers of
one question share its tokens too, packed as a tree into one row whose attention mask lets each token see its own ancestors
only. The numbers are those of separate rows, up to the order in which floating-point sums are taken.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm
from transformers import AttentionInterface, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from pipeline.score import BROKEN
from swiftkv.chats import TEMPLATE_ARGUMENTS
from swiftkv.errors import UserError
from swiftkv.quantize.kv_cache import Peak, new_cache

Request = tuple[Any, list[int], list[int]]  # strings, context tokens, continuation tokens
Batch = tuple[list[int], Any, Callable[[], Any]]  # numbers of requests, key of their answers, function that answers
BATCHES = 16  # of log-likelihoods, which are kept together
SCORES = 2**19  # attention scores in flight: what stays in a core's cache


class KeptAnswers:
    """A file with the answers to a task, a line a batch, so that a job that is killed loses its last batch only.

    A batch is found again by its tokens. So a score that goes on computes the very batches that it lacks, and its numbers
    are those of an undisturbed one.

    Attributes:
        found: batches that an earlier job had answered.
        seconds: time which that job took for those of them that were asked again.

    Args:
        file: created if need be; None keeps nothing.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file, self.seconds = file, 0.0
        self._answers: dict[str, tuple[Any, float]] = {}
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            for line in file.read_bytes().splitlines():
                with contextlib.suppress(
                    ValueError
                ):  # cut short when a job was killed, or zeros of a machine that went down
                    key, answer, seconds = json.loads(line)
                    self._answers[key] = answer, seconds
        self.found = len(self._answers)

    def answer(self, inputs: Any, compute: Callable[[], Any]) -> Any:
        """Return the answer kept for `inputs`, or `compute()`; both as JSON has them, numbers bit for bit."""
        key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        if key in self._answers:
            answer, seconds = self._answers[key]
            self.seconds += seconds
            return answer
        started = time.monotonic()
        text = json.dumps(compute())
        if self.file is not None:
            with self.file.open("a") as lines:
                # The line before may have been cut short.
                lines.write(f'\n["{key}", {text}, {time.monotonic() - started:.3f}]')
        return json.loads(text)


class CachedLM(HFLM):
    """HFLM over a model already in memory that attends to keys and values as a KV cache returns them.

    Log-probabilities and their sums are float32: in the logits' bfloat16 a sum of -100 nats has steps of half a nat.

    Args:
        model: language model of transformers, ordinary or SwiftKV.
        tokenizer: its tokenizer.
        kv_cache: "auto" or "fp8".
        batch_size: prompts computed together.

    Attributes:
        kept: the answers found again and kept; by default none are.
        peak: the largest key that an FP8 cache was given since `keep`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kv_cache: str = "auto", batch_size: int = 8
    ) -> None:
        super().__init__(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, softmax_dtype="float32"
        )
        self.kv_cache = kv_cache
        self.chat_template_args = TEMPLATE_ARGUMENTS
        self.keep(None)

    def keep(self, file: Path | None) -> None:
        """Keep the answers from here on in a file."""
        self.kept, self.peak = KeptAnswers(file), Peak()

    def _new_cache(self) -> DynamicCache:
        return new_cache(self.kv_cache, self.model.config, self.peak)

    def _answer(self, inputs: list[Any], compute: Callable[[], Any]) -> Any:
        answer, keys = self.kept.answer(inputs, lambda: (compute(), self.peak.found()))
        self.peak.include(keys)
        return answer

    def _rows(self, requests: list[Request]) -> list[tuple[list[int], list[int]]]:
        """Return for each request the tokens fed to the model, and the last tokens of its continuation, which are scored."""
        rows = []
        for _strings, context, continuation in requests:
            fed = (context + continuation)[-(self.max_length + 1) :][:-1]
            rows.append((fed, continuation[-len(fed) :]))
        return rows

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Return for each request the log-probability of its continuation in nats, and whether that is the greedy one.

        Raises:
            UserError: a log-probability is not finite.
        """
        answers: list[Any] = [None] * len(requests)
        with tqdm(total=len(requests), desc="log-likelihoods", disable=disable_tqdm, mininterval=5) as bar:
            for numbers, inputs, compute in self._batches(requests):
                for number, answer in zip(numbers, self._answer(inputs, compute), strict=True):
                    answers[number] = tuple(answer)
                bar.update(len(numbers))
        return answers

    def _batches(self, requests: list[Request]) -> Iterator[Batch]:
        def longest_first(number: int) -> tuple[int, list[int]]:  # HFLM's own order
            _strings, context, continuation = requests[number]
            return -len(context + continuation), context + continuation

        order = sorted(range(len(requests)), key=longest_first)
        for begin in range(0, len(order), size := BATCHES * self.batch_size):
            numbers = order[begin : begin + size]
            batch = [requests[number] for number in numbers]
            yield numbers, [self.batch_size, [tokens for _, *tokens in batch]], partial(self._scored, batch)

    def _scored(self, requests: list[Request]) -> list[tuple[float, bool]]:
        if getattr(self.model.config, "swiftkv_own_key_values", False) and len(requests) > 1:
            # Which tokens run all layers differs by row.
            return [answer for request in requests for answer in self._scored([request])]
        self._unscored = min(len(fed) - len(continuation) for fed, continuation in self._rows(requests))
        return _checked(super()._loglikelihood_tokens(requests, disable_tqdm=True))

    def _model_call(self, inps: torch.Tensor, attn_mask: None = None, labels: None = None) -> torch.Tensor:
        """Return logits [batch, tokens, vocabulary] of rows [batch, tokens] padded on the right.

        They begin where the first is scored: float32 log-probabilities of all would not fit beside a large model.
        """
        keep = inps.shape[1] - self._unscored
        with torch.inference_mode():
            return self.model(inps, past_key_values=self._new_cache(), use_cache=True, logits_to_keep=keep).logits

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **arguments: Any
    ) -> torch.Tensor:
        """Generate as HFLM does, [batch, tokens] padded on the left -> [batch, tokens + generated].

        Raises:
            UserError: a logit is NaN.
        """
        mask = arguments.pop("attention_mask")
        inputs = [context.tolist(), mask.tolist(), max_length, stop, arguments]
        options = arguments | {"attention_mask": mask, "logits_processor": [_no_nan]}
        begin = context.shape[1]
        with torch.inference_mode():
            added = self._answer(
                inputs, lambda: self._generated(context, max_length, stop, **options)[:, begin:].tolist()
            )
        return torch.cat([context, context.new_tensor(added)], dim=1)

    def _generated(self, context: torch.Tensor, max_length: int, stop: list[str], **arguments: Any) -> torch.Tensor:
        arguments.setdefault("past_key_values", self._new_cache())
        return super()._model_generate(context, max_length, stop, **arguments)


def _checked(answers: list[tuple[float, bool]]) -> list[tuple[float, bool]]:
    for value, _greedy in answers:
        if not math.isfinite(value):
            raise UserError(f"a log-likelihood is {value}: {BROKEN}")
    return answers


def _no_nan(_tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Refuse NaN among logits, of which generation would take the first; a logits processor that changes nothing."""
    if logits.isnan().any():
        raise UserError(f"the logits of an answer are NaN: {BROKEN}")
    return logits


class PrefixSharingLM(CachedLM):
    """`CachedLM` for CPUs, which computes once what prompts have in common.

    Args:
        tokens_per_forward: about so many tree nodes are scored in one forward pass.
    """

    def __init__(self, *args: Any, tokens_per_forward: int = 256, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model.set_attn_implementation("grouped")
        self.tokens_per_forward = tokens_per_forward

    @torch.inference_mode()
    def _prefill(self, tokens: list[int]) -> DynamicCache:
        cache = self._new_cache()
        if tokens:
            row = torch.tensor([tokens], device=self.device)
            if hasattr(self.model, "swiftkv_parameters"):  # none of it runs all layers
                self.model.model.fill_upper_cache(self.model.model.forward_lower(row, past_key_values=cache))
            else:
                self.model(row, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def _batches(self, requests: list[Request]) -> Iterator[Batch]:
        rows = self._rows(requests)
        order = sorted(range(len(rows)), key=lambda number: rows[number][0])  # neighbors share most
        # A position that is scored has to be computed, so it must not be in the common start.
        most = min(len(fed) - len(continuation) for fed, continuation in rows)
        shared = min(_common(rows[order[0]][0], rows[order[-1]][0]), most)
        common = rows[0][0][:shared]
        start = self._prefill(common)
        tree, numbers, paths = TokenTree(shared), [], []
        for place, number in enumerate(order):
            fed, continuation = rows[number]
            numbers.append(number)
            path = tree.add(fed[shared:], len(fed) - len(continuation) - shared)
            paths.append((path[-len(continuation) :], continuation))
            if len(tree) >= self.tokens_per_forward or place == len(order) - 1:
                inputs = [common, *([rows[number] for number in numbers])]
                yield numbers, inputs, partial(self._score, tree, start, paths)
                tree, numbers, paths = TokenTree(shared), [], []

    @torch.inference_mode()
    def _score(
        self, tree: TokenTree, start: DynamicCache, paths: list[tuple[list[int], list[int]]]
    ) -> list[tuple[float, bool]]:
        """Answer continuations, each given as the path of its nodes through the tree and its tokens."""
        nodes = sorted({node for path, _ in paths for node in path})
        place = {node: number for number, node in enumerate(nodes)}
        logits = self.model(
            input_ids=torch.tensor([tree.tokens], device=self.device),
            position_ids=torch.tensor([tree.positions], device=self.device),
            attention_mask=tree.mask(self.device),
            past_key_values=_fork(start),
            use_cache=True,
            logits_to_keep=torch.tensor(nodes, device=self.device),
        ).logits[0]
        scored = torch.tensor([place[node] for path, _ in paths for node in path], device=self.device)
        target = torch.tensor([token for _, tokens in paths for token in tokens], device=self.device)
        value, greedy = [], []
        for places, tokens in zip(scored.split(256), target.split(256), strict=True):
            part = logits[places].float()
            value.append(part.gather(1, tokens[:, None])[:, 0] - part.logsumexp(dim=-1))
            greedy.append(part.argmax(dim=-1) == tokens)
        value, greedy = torch.cat(value).double().cpu(), torch.cat(greedy).cpu()
        parts = zip(*(tensor.split([len(path) for path, _ in paths]) for tensor in (value, greedy)), strict=True)
        return _checked([(likely.sum().item(), bool(same.all())) for likely, same in parts])

    def _generated(self, context: torch.Tensor, max_length: int, stop: list[str], **arguments: Any) -> torch.Tensor:
        """Generate as `CachedLM` does, with the common start run once."""
        mask = arguments.pop("attention_mask")
        prompts = [row[kept.bool()].tolist() for row, kept in zip(context, mask, strict=True)]
        shared = 0
        if len(prompts) > 1:
            first, last = min(prompts), max(prompts)
            shared = min(_common(first, last), min(map(len, prompts)) - 1)
        cache = self._prefill(prompts[0][:shared])
        if shared:
            cache.batch_repeat_interleave(len(prompts))
            # Padding moves behind the common start, so that this lies at the same place in every row.
            common = context.new_tensor(prompts[0][:shared]).expand(len(prompts), -1)
            context, mask = context.clone(), mask.clone()
            for row, prompt in enumerate(prompts):
                padding = context.shape[1] - len(prompt)
                context[row, shared : shared + padding] = context[row, :padding].clone()
                mask[row, shared : shared + padding] = 0
            context[:, :shared], mask[:, :shared] = common, 1
        return super()._generated(context, max_length, stop, attention_mask=mask, past_key_values=cache, **arguments)


class TokenTree:
    """Token sequences merged by common starts; nodes in the order they were added, after a start of `depth` tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self._parents: list[int] = []
        self._nodes: dict[tuple[int, int, bool], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

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
        seen = torch.zeros(len(self), self.depth + len(self), dtype=torch.bool)
        seen[:, : self.depth] = True
        for node, parent in enumerate(self._parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, self.depth + node] = True
        return seen[None, None].to(device)


def _common(first: list[int], second: list[int]) -> int:
    length = min(len(first), len(second))
    return next((place for place in range(length) if first[place] != second[place]), length)


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
    """Scaled dot-product attention for inference that reads grouped keys and values in place.

    transformers' sdpa function copies every KV head once for each of its query heads whenever there is a mask, which with
    batched decoding costs ten times the attention itself. Here the query heads of a group become rows of one product with
    their KV head. Products are in the model's dtype, softmax is float32, as in transformers' eager attention.

    Args:
        query: [batch, heads, queries, head size].
        key, value: [batch, KV heads, keys, head size]; the values' size may be another.
        attention_mask: bool, True = attend, [batch or 1, 1, queries, keys]; None leaves it to transformers' sdpa.
        scaling: factor of the attention scores; None is head size ** -0.5.

    Returns:
        [batch, queries, heads, value head size] and None.
    """
    batch, heads, queries, size = query.shape
    if attention_mask is None or attention_mask.dtype != torch.bool:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    kv_heads, keys = key.shape[1:3]
    groups = heads // kv_heads
    scale = size**-0.5 if scaling is None else scaling
    rows = query.reshape(batch * kv_heads, groups * queries, size)
    key, value = (states.reshape(batch * kv_heads, keys, -1) for states in (key, value))
    hidden = ~attention_mask[:, 0].expand(batch, queries, keys)
    pairs = torch.arange(batch * kv_heads)
    output = rows.new_empty(*rows.shape[:2], value.shape[-1])
    for some in pairs.split(max(1, SCORES // (groups * queries * keys))):
        part = slice(int(some[0]), int(some[-1]) + 1)
        scores = (rows[part] @ key[part].transpose(1, 2)).float().mul_(scale).view(-1, groups, queries, keys)
        # A query that sees nothing (padding) must not become NaN, so no -inf.
        scores.masked_fill_(hidden[some // kv_heads, None], torch.finfo(torch.float32).min)
        output[part] = scores.softmax(dim=-1).to(value.dtype).view(-1, groups * queries, keys) @ value[part]
    return output.view(batch, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register("grouped", grouped_attention)
AttentionMaskInterface.register("grouped", sdpa_mask)
