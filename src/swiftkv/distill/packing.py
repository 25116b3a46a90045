"""Tokenize chats and pack them into training rows of several samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from swiftkv.chats import CHAT_DATE, check_refusals, padding_id, read_chats, render
from swiftkv.distill.progress import say
from swiftkv.distill.recipe import PackingSettings
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.models import load_tokenizer
from swiftkv.tensor_file import open_tensors, save

BATCH = 1000  # chats tokenized at once
OPEN_ROWS = 64  # latest rows that a sample may still fill
_KINDS = {"input_ids": torch.int64, "position_ids": torch.int64, "loss_mask": torch.float32}


@dataclass(frozen=True)
class Sample:
    """One chat.

    Attributes:
        ids: token ids, int32 [n].
        assistant: 1 for the assistant's tokens, uint8 [n]; None if the chat template does not tell.
    """

    ids: np.ndarray
    assistant: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)


def pack_chats(
    model: Path, data: Path, recipe: PackingSettings, output: Path, origin: dict[str, Any] | None = None
) -> None:
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
    padding = padding_id(tokenizer, config["vocab_size"])
    needed = None if recipe.max_steps is None else recipe.max_steps * recipe.batch_size
    longest = min(recipe.max_length, config.get("max_position_embeddings") or recipe.max_length)
    arrays, counts = pack(samples, recipe.max_length, recipe.seed, padding, needed, longest)
    rows = len(arrays["input_ids"])
    if rows == 0:
        raise UserError(f"no chat of {data} has at most {longest} tokens, so there is nothing to train on")
    description = {"rows": rows, "max_length": recipe.max_length, "longest": longest, "chat_date": str(CHAT_DATE)}
    write_packed(output, arrays, {**description, "tokenizer": origin, "refused": refused, **counts})
    filled = counts["tokens"] / arrays["input_ids"].size
    say(
        f"{counts['samples']} chats, {counts['tokens']} tokens in {rows} rows of {recipe.max_length} "
        f"({filled:.1%} full), {counts['assistant_tokens']} the assistant's; left out: "
        f"{counts['too_long']} of more than {longest} tokens, {refused} refused, {counts['empty']} empty, "
        f"{counts['not_needed']} not needed"
    )


def tokenize(tokenizer: PreTrainedTokenizerBase, chats: Iterable[dict[str, Any]]) -> tuple[list[Sample], int]:
    """Tokenize chats with the chat template, which writes all special tokens.

    Returns:
        The samples, and the number of chats that the template refuses.

    Raises:
        UserError: the template refuses more than 1 % of the chats.
    """
    samples, texts, answers, refusals, number = [], [], [], [], 0

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
            refusals.append(f"chat {number}: {error}")
            continue
        answers.append(answer_spans(tokenizer, chat["messages"], texts[-1]))
        if len(texts) == BATCH:
            flush()
    flush()
    check_refusals(refusals, number)
    return samples, len(refusals)


def answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], text: str
) -> list[tuple[int, int]] | None:
    """Return start and end of the assistant's messages in a chat's text, end-of-turn tokens included.

    A message is the difference between the rendered chat up to it and the prompt for it. None if these are no prefixes of
    the text, as with templates that render the end of a chat in another way.
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
        samples: chats; empty ones and those longer than `longest` are dropped.
        max_length: tokens per row.
        padding: token id of padding.
        max_rows: largest number of rows; None packs everything.
        longest: largest number of tokens of a sample; None means `max_length`.

    Returns:
        input_ids, position_ids (int32), loss_mask and assistant_mask (uint8), each [rows, max_length]; and counts:
        samples, tokens, assistant_tokens, too_long, empty, not_needed, and unmarked (samples without `assistant`).
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
    """Write the rows as a safetensors file with `description` as JSON metadata, atomically."""
    save(Path(path), {name: torch.from_numpy(array) for name, array in arrays.items()}, description)


class PackedRows:
    """Memory-mapped packed rows.

    Attributes:
        rows: number of rows.
        max_length: tokens per row.
        description: JSON metadata of the file.
    """

    def __init__(self, path: str | Path, assistant: bool = False) -> None:
        """Open `path`.

        Args:
            assistant: also read `assistant_mask`.

        Raises:
            UserError: it is missing, damaged or not packed rows, or the assistant's tokens are not known.
        """
        self._kinds = _KINDS | ({"assistant_mask": torch.float32} if assistant else {})
        self._file, self.description = open_tensors(Path(path), tuple(self._kinds))
        if assistant and (count := self.description["unmarked"]):
            raise UserError(
                f"{path}: the chat template does not tell the assistant's tokens in {count} of "
                f"{self.description['samples']} chats; use logits_tokens: all"
            )
        self._slices = {name: self._file.get_slice(name) for name in self._kinds}
        self.rows, self.max_length = self._slices["input_ids"].get_shape()

    def __getitem__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """input_ids, position_ids (int64), loss_mask and maybe assistant_mask (float32), each [len(rows), max_length]."""
        return {name: gather_rows(self._slices[name], rows).to(kind) for name, kind in self._kinds.items()}

    def counted(self, rows: list[int]) -> int:
        """Number of positions of the given rows that count in the loss."""
        return int(gather_rows(self._slices["loss_mask"], rows).sum())


def gather_rows(part: Any, rows: list[int]) -> torch.Tensor:
    """Read rows of a slice of an open safetensors file into one tensor."""
    return torch.cat([part[row : row + 1] for row in rows])
