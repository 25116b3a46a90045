"""Chats from JSON lines to token ids: a seeded choice of documents, through the model's chat template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError


def choose_chats(path: str | Path, documents: int, seed: int) -> list[dict[str, Any]]:
    """Draw `documents` chats without replacement from a JSON-lines file (all of them, if it has no more).

    Args:
        path: file with one chat a line, {"id", "source", "messages": [{"role", "content"}, ...]}.
        documents: how many.
        seed: of the draw.

    Raises:
        UserError: the file is missing, damaged or empty.
    """
    try:
        with Path(path).open(encoding="utf-8") as lines:
            chats = [json.loads(line) for line in lines if line.strip()]
        bad = next((number for number, chat in enumerate(chats, 1) if not chat["messages"]), None)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a file of chats, one JSON object a line ({error}); make it again") from None
    if bad is not None or not chats:
        raise UserError(f"{path} has {'a chat without messages' if chats else 'no chats'}; make it again")
    return random.Random(seed).sample(chats, min(documents, len(chats)))


def tokenize(tokenizer: Any, messages: list[dict[str, str]], max_length: int) -> list[int]:
    """Token ids of a chat through the model's chat template, cut after `max_length` tokens."""
    tokens = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    return list(tokens[:max_length])
