"""Chats in JSON lines, {"id", "source", "messages": [{"role", "content"}, ...]} each: reading, choosing, tokenizing."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError

# Some templates write today's date (Llama-3.2's), so that prompts would change at midnight; this is the constant of Llama-3.1's.
CHAT_DATE = datetime.date(2024, 7, 26)
TEMPLATE_ARGUMENTS = {"strftime_now": CHAT_DATE.strftime}
MOST_REFUSED = 0.01


def check_refusals(refusals: list[str], total: int) -> None:
    """Print how many of `total` chats are left out because something refuses them, and the first reason, if any.

    Raises:
        UserError: more than 1 % of them.
    """
    if not refusals:
        return
    said = f"{len(refusals)} of {total} chats are left out; the first: {refusals[0]}"
    if len(refusals) > MOST_REFUSED * total:
        raise UserError(f"{said}. At most {MOST_REFUSED:.0%} may be: correct the data, or its entry in the config")
    print(said, flush=True)


def render(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> Any:
    """Apply a tokenizer's chat template to messages on `CHAT_DATE`; `options` are those of `apply_chat_template`.

    Raises:
        UserError: the template refuses them, as some do unless roles alternate.
    """
    try:
        return tokenizer.apply_chat_template(messages, **TEMPLATE_ARGUMENTS, **options)
    except Exception as error:  # templates raise what they like
        raise UserError(f"the chat template refuses it ({error})") from None


def read_chats(path: str | Path) -> Iterator[dict[str, Any]]:
    """Iterate over the chats of a file.

    Raises:
        UserError: the file is missing or empty, or a line, which is named, is no chat.
    """
    number = 0
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                chat = json.loads(line)
                messages = chat["messages"]
                if not messages or not all(
                    isinstance(m["role"], str) and isinstance(m["content"], str) for m in messages
                ):
                    raise ValueError("a chat is messages of a role and a content")
                yield chat
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}, line {number}, is no chat ({error}); delete the file and run again") from None
    if not number:
        raise UserError(f"{path} holds no chat; delete the file and run again")


def choose_chats(path: str | Path, documents: int, seed: int) -> list[dict[str, Any]]:
    """Draw `documents` chats without replacement (all of them, if the file has no more), by `seed`."""
    chats = list(read_chats(path))
    return random.Random(seed).sample(chats, min(documents, len(chats)))


def tokenize_chat(
    tokenizer: Any, messages: list[dict[str, str]], max_length: int | None = None, **options: Any
) -> list[int]:
    """Token ids of a chat through the model's chat template, cut after `max_length` tokens; options and errors as `render`."""
    return list(render(tokenizer, messages, tokenize=True, return_dict=True, **options)["input_ids"][:max_length])


def padding_id(tokenizer: Any, rows: int) -> int:
    """Return a token id to pad with that an embedding of so many rows has; some tokenizers pad with one that it lacks."""
    choices = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(number for number in choices if number is not None and number < rows)


def draw_documents(
    tokenizer: Any, config: dict[str, Any], path: str | Path, documents: int, max_length: int, seed: int
) -> tuple[list[list[int]], dict[str, Any]]:
    """Token ids of the chats that `choose_chats` draws, without those that the chat template refuses.

    Args:
        tokenizer: a tokenizer with a chat template.
        config: content of the model's config.json; a chat is cut where the model's positions end, too.
        path, documents, seed: as in `choose_chats`.
        max_length: tokens of a chat that count.

    Returns:
        The ids, a list for each chat; and for records the name of the file and the sources of the chats.

    Raises:
        UserError: as `read_chats`, or the template refuses more than 1 % of all chats of the file.
    """
    chats, tokenized = choose_chats(path, documents, seed), []
    longest = min(max_length, config.get("max_position_embeddings") or max_length)
    for chat in chats:
        with contextlib.suppress(UserError):
            tokenized.append(tokenize_chat(tokenizer, chat["messages"], longest))
    if len(tokenized) < len(chats):  # a draw is too small to tell how many it refuses
        refusals = []
        for number, chat in enumerate(read_chats(path), 1):
            try:
                render(tokenizer, chat["messages"], tokenize=False)
            except UserError as error:
                refusals.append(f"chat {number}: {error}")
        check_refusals(refusals, number)
        if not tokenized:
            raise UserError(f"the chat template refuses all of the few chats drawn from {path}; draw more")
    return tokenized, {"chats": Path(path).name, "sources": sorted({chat.get("source", "") for chat in chats})}
