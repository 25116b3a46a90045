"""Chats in JSON lines, {"id", "source", "messages": [{"role", "content"}, ...]} each: reading, choosing, tokenizing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError


def read_chats(path: str | Path) -> Iterator[dict[str, Any]]:
    """The chats of a file, one at a time.

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
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; delete the file and run again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}, line {number}, is no chat ({error}); delete the file and run again") from None
    if not number:
        raise UserError(f"{path} holds no chat; delete the file and run again")


def choose_chats(path: str | Path, documents: int, seed: int) -> list[dict[str, Any]]:
    """Draw `documents` chats without replacement (all of them, if the file has no more), by `seed`."""
    chats = list(read_chats(path))
    return random.Random(seed).sample(chats, min(documents, len(chats)))


def tokenize_chat(tokenizer: Any, messages: list[dict[str, str]], max_length: int) -> list[int]:
    """Token ids of a chat through the model's chat template, cut after `max_length` tokens."""
    tokens = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    return list(tokens[:max_length])
