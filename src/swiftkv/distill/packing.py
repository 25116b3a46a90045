"""Chats to packed training rows: chat template, tokens, several samples a row, each attending only to itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from swiftkv.chats import CHAT_DATE, Refusals, read_chats, render
from swiftkv.distill.recipe import Packing
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json
from swiftkv.models import load_tokenizer
from swiftkv.tensor_file import open_tensors

BATCH = 1000  # chats tokenized at once
OPEN_ROWS = 64  # rows that a later, shorter sample may still fill
_KINDS = {"input_ids": torch.int64, "position_ids": torch.int64, "loss_mask": torch.float32}


@dataclass(frozen=True)
class Sample:
    """One chat.

    Attributes:
        ids: token ids, int32 [n].
        assistant: which tokens are the assistant's, uint8 [n]; None where the chat template does not tell.
    """

    ids: np.ndarray
    assistant: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)


def pack_chats(model: Path, data: Path, recipe: Packing, output: Path, origin: dict[str, Any] | None = None) -> None:
    """Tokenize chats with a model's chat template and pack them into rows of the recipe's length.

    Args:
        model: folder of the model's checkpoint, with its tokenizer.
        data: chats, one JSON object a line.
        recipe: of the trainings with the rows.
        output: the packed rows, safetensors.
        origin: identity of the model, kept beside the rows.

    Raises:
        UserError: a file is missing or damaged, the chat template refuses the chats, or no chat fits into a row.
    """
    tokenizer, config = load_tokenizer(model), read_json(model / "config.json")
    samples, refused = tokenize(tokenizer, read_chats(data))
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    needed = None if recipe.max_steps is None else recipe.max_steps * recipe.batch_size
    longest = min(recipe.max_length, config.get("max_position_embeddings") or recipe.max_length)
    arrays, counts = pack(samples, recipe.max_length, recipe.seed, padding or 0, needed, longest)
    rows = len(arrays["input_ids"])
    if rows == 0:
        raise UserError(f"no chat of {data} has at most {longest} tokens, so there is nothing to train on")
    description = {"rows": rows, "max_length": recipe.max_length, "longest": longest, "chat_date": str(CHAT_DATE)}
    write_packed(output, arrays, {**description, "tokenizer": origin, "refused": refused, **counts})
    filled = counts["tokens"] / arrays["input_ids"].size
    print(
        f"{counts['samples']} chats, {counts['tokens']} tokens in {rows} rows of {recipe.max_length} "
        f"({filled:.1%} full), {counts['assistant_tokens']} the assistant's; left out: "
        f"{counts['too_long']} of more than {longest} tokens, {refused} refused, {counts['empty']} empty, "
        f"{counts['not_needed']} not needed",
        file=sys.stderr,
    )


def tokenize(tokenizer: PreTrainedTokenizerBase, chats: Iterable[dict[str, Any]]) -> tuple[list[Sample], int]:
    """The chats under the tokenizer's chat template, which writes all special tokens; and how many it refuses.

    Raises:
        UserError: the template refuses more than 1 % of them.
    """
    samples, texts, answers, refusals, number = [], [], [], Refusals(), 0

    def flush() -> None:
        if texts:
            encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast)
            for number, ids in enumerate(encoded["input_ids"]):
                marks = None
                if tokenizer.is_fast and answers[number] is not None:
                    starts = [start for start, _ in encoded["offset_mapping"][number]]
                    marks = [any(first <= start < end for first, end in answers[number]) for start in starts]
                    marks = np.asarray(marks, dtype=np.uint8)
                samples.append(Sample(np.asarray(ids, dtype=np.int32), marks))
            texts.clear()
            answers.clear()

    for number, chat in enumerate(chats, 1):
        try:
            texts.append(render(tokenizer, chat["messages"], tokenize=False))
        except UserError as error:
            refusals.add(f"chat {number}: {error}")
            continue
        answers.append(answer_spans(tokenizer, chat["messages"], texts[-1]))
        if len(texts) == BATCH:
            flush()
    flush()
    refusals.check(number)
    return samples, refusals.count


def answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], text: str
) -> list[tuple[int, int]] | None:
    """Where the assistant's messages stand in a chat's text, what ends them included: first character and end.

    A message is what the text of the chat so far adds to the prompt for it. None where that does not hold, because the
    template writes the beginning of a chat in another way than the same messages inside a longer one.
    """
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            prompt = render(tokenizer, messages[:number], tokenize=False, add_generation_prompt=True)
            whole = render(tokenizer, messages[: number + 1], tokenize=False)
        except UserError:
            return None
        if not (text.startswith(whole) and whole.startswith(prompt)):
            return None
        spans.append((len(prompt), len(whole)))
    return spans


def pack(
    samples: list[Sample],
    max_length: int,
    seed: int,
    padding: int,
    max_rows: int | None = None,
    longest: int | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Shuffle the samples and put each into the first open row that has room.

    Padding at a row's end is a sample of its own (positions restart), with mask 0.

    Args:
        samples: chats; those longer than `longest` or empty are dropped and counted.
        max_length: tokens a row.
        seed: the seed of the shuffle.
        padding: token id of padding.
        max_rows: stop when this many rows are full enough; None packs everything.
        longest: tokens of a sample, at most `max_length`, which None stands for.

    Returns:
        input_ids, position_ids (int32), loss_mask and assistant_mask (uint8), each [rows, max_length]; and counts:
        samples, tokens, assistant_tokens, too_long, empty, not_needed, and unmarked, those of the samples in which the
        assistant's tokens are not known.
    """
    rows: list[list[Sample]] = []
    room: list[int] = []
    counts = dict.fromkeys(("samples", "tokens", "assistant_tokens", "too_long", "empty", "not_needed", "unmarked"), 0)
    for index in np.random.default_rng(seed).permutation(len(samples)):
        sample = samples[index]
        if len(sample) == 0 or len(sample) > (longest or max_length):
            counts["too_long" if len(sample) else "empty"] += 1
            continue
        first = max(0, len(rows) - OPEN_ROWS)
        row = next((r for r in range(first, len(rows)) if room[r] >= len(sample)), len(rows))
        if row == len(rows):
            if max_rows is not None and row == max_rows:
                counts["not_needed"] += 1
                continue
            rows.append([])
            room.append(max_length)
        rows[row].append(sample)
        room[row] -= len(sample)
        counts["samples"] += 1
        counts["tokens"] += len(sample)
        if sample.assistant is None:
            counts["unmarked"] += 1
        else:
            counts["assistant_tokens"] += int(sample.assistant.sum())
    shape = (len(rows), max_length)
    arrays = {
        "input_ids": np.full(shape, padding, dtype=np.int32),
        "position_ids": np.zeros(shape, dtype=np.int32),
        "loss_mask": np.zeros(shape, dtype=np.uint8),
        "assistant_mask": np.zeros(shape, dtype=np.uint8),
    }
    for row, parts in enumerate(rows):
        start = 0
        for sample in parts:
            end = start + len(sample)
            arrays["input_ids"][row, start:end] = sample.ids
            arrays["position_ids"][row, start:end] = np.arange(len(sample))
            arrays["loss_mask"][row, start:end] = 1
            if sample.assistant is not None:
                arrays["assistant_mask"][row, start:end] = sample.assistant
            start = end
        arrays["position_ids"][row, start:] = np.arange(max_length - start)
    return arrays, counts


def write_packed(path: str | Path, arrays: dict[str, np.ndarray], description: dict[str, Any]) -> None:
    """Write the rows as one safetensors file with `description` as JSON metadata, atomically."""
    with atomic_path(path) as scratch:
        save_file(arrays, scratch, metadata={"description": json.dumps(description, sort_keys=True)})


class PackedRows:
    """Rows of a packed file, read from the memory-mapped file when asked for.

    Attributes:
        rows: number of rows N.
        max_length: tokens a row.
        description: what the writer said about the data.
    """

    def __init__(self, path: str | Path, assistant: bool = False) -> None:
        """Open `path`.

        Args:
            assistant: also give which tokens are the assistant's.

        Raises:
            UserError: it is missing, cut short or not packed rows, or the assistant's tokens are not known.
        """
        self.path = Path(path)
        self._kinds = _KINDS | ({"assistant_mask": torch.float32} if assistant else {})
        self._file, self.description = open_tensors(self.path, tuple(self._kinds))
        if assistant and (count := self.description["unmarked"]):
            raise UserError(
                f"{path}: the chat template does not tell the assistant's tokens in {count} of "
                f"{self.description['samples']} chats; use logits_tokens: all"
            )
        self._slices = {name: self._file.get_slice(name) for name in self._kinds}
        shapes = {tuple(part.get_shape()) for part in self._slices.values()}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 2:
            raise UserError(f"{path} does not hold packed rows; delete it and run again")
        self.rows, self.max_length = shape

    def __getitem__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """By name, each [len(rows), max_length]: input_ids, position_ids (int64), loss_mask (float32) and, if they were
        asked for, assistant_mask (float32).
        """
        return {name: gather_rows(self._slices[name], rows).to(kind) for name, kind in self._kinds.items()}

    def counted(self, rows: list[int]) -> int:
        """How many positions of the given rows count in the loss."""
        return int(gather_rows(self._slices["loss_mask"], rows).sum())


def gather_rows(part: Any, rows: list[int]) -> torch.Tensor:
    """Rows of a slice of an open safetensors file, as one tensor."""
    return torch.cat([part[row : row + 1] for row in rows])
