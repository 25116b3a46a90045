"""Prompts as token ids, made before any clock starts: random ones of one length, or the openings of real chats."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from swiftkv.chats import Refusals, choose_chats, render
from swiftkv.errors import UserError

# Special tokens stand at either end of a vocabulary: Llama-2's and SmolLM's first, Llama-3's last.
MARGIN = 1000


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids below `vocabulary`, without those at either end of it."""
    margin = min(MARGIN, vocabulary // 4)
    source = random.Random(seed)
    ids = range(margin, vocabulary - margin)
    return [source.choices(ids, k=length) for _ in range(count)]


def chat_prompts(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[list[int]]:
    """The ids of `chat_openings`."""
    return [ids for _, ids in chat_openings(folder, heldout, longest, seed)]


def chat_openings(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[tuple[str, list[int]]]:
    """Opening user messages of all chats that fit into `longest` tokens, and their ids through the chat template, in drawn order.

    Args:
        folder: the model, with its tokenizer.
        heldout: chats, as `data.read.read_chats` reads them.

    Raises:
        UserError: no chat is that short, or the chat template refuses more than 1 % of them.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts, chats, refusals = [], choose_chats(heldout, 10**9, seed), Refusals()
    for chat in chats:
        if chat["messages"][0]["role"] == "user":
            try:
                ids = opening(tokenizer, chat["messages"][0])
            except UserError as error:
                refusals.add(f"chat {chat.get('id')}: {error}")
                continue
            if len(ids) <= longest:
                prompts.append((chat["messages"][0]["content"], ids))
    refusals.check(len(chats))
    if not prompts:
        raise UserError(f"{heldout} has no chat whose opening fits into {longest} tokens")
    return prompts


def opening(tokenizer: Any, message: dict[str, str]) -> list[int]:
    """Token ids of a chat that begins with `message` and waits for the answer."""
    return list(render(tokenizer, [message], add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"])
