"""Prompts as token ids: random ones, chats, and questions of SQuAD."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swiftkv.chats import check_refusals, choose_chats, tokenize_chat
from swiftkv.errors import UserError

# Special tokens stand at either end of a vocabulary: Llama-2's and SmolLM's first, Llama-3's last.
MARGIN = 1000
FORM = re.compile(r"(Title: .*)\n(Background: .*)\n(Question: .*)", re.DOTALL)
INSTRUCTION = "Answer with a few words of the text."


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids below `vocabulary`, without those at either end of it."""
    margin = min(MARGIN, vocabulary // 4)
    source = random.Random(seed)
    ids = range(margin, vocabulary - margin)
    return [source.choices(ids, k=length) for _ in range(count)]


def chat_prompts(folder: str | Path, heldout: str | Path, longest: int, seed: int) -> list[list[int]]:
    """Token ids of the opening user messages of all chats that fit into `longest` tokens, in drawn order.

    Args:
        folder: the model, with its tokenizer.
        heldout: chats, as `swiftkv.chats.read_chats` reads them.

    Raises:
        UserError: no chat is that short, or the chat template refuses more than 1 % of them.
    """
    tokenizer = plain_tokenizer(folder)
    prompts, chats, refusals = [], choose_chats(heldout, 10**9, seed), []
    for chat in chats:
        first = chat["messages"][0]
        if first["role"] == "user":
            try:
                ids = opening(tokenizer, first["content"])
            except UserError as error:
                refusals.append(f"chat {chat.get('id')}: {error}")
                continue
            if len(ids) <= longest:
                prompts.append(ids)
    check_refusals(refusals, len(chats))
    if not prompts:
        raise UserError(f"{heldout} has no chat whose opening fits into {longest} tokens")
    return prompts


def plain_tokenizer(folder: str | Path) -> Any:
    """Return the tokenizer of a checkpoint, with or without a chat template."""
    from transformers import AutoTokenizer

    import swiftkv.models  # noqa: F401 - registers SwiftKV's classes; late, as planning imports this module without torch

    return AutoTokenizer.from_pretrained(folder)


def opening(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a chat with `text` from the user, up to where the answer begins."""
    return tokenize_chat(tokenizer, [{"role": "user", "content": text}], add_generation_prompt=True)


def choose_questions(chats: Path, items: int, seed: int) -> list[list[str]]:
    """Draw questions of SQuAD: title, passage, question, and each accepted answer.

    Args:
        chats: the questions as chats, with accepted answers on lines of their own.
        items, seed: as `choose_chats` draws them.

    Raises:
        UserError: the file is missing or damaged, or a question is not of the form `FORM`, or has no answer.
    """
    found = []
    for asked, *rest in (chat["messages"] for chat in choose_chats(chats, items, seed)):
        if not (rest and (form := FORM.fullmatch(asked["content"]))):
            raise UserError(f"every question of {chats} must have Title, Background and Question, and an answer")
        answers = rest[0]
        found.append([*form.groups(), *answers["content"].split("\n")])
    return found


def question_prompt(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the token ids of texts and a question after them, in the chat template."""
    return opening(tokenizer, "\n".join([*texts, INSTRUCTION]))
