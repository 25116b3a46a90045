"""Measurements on held-out chats, from the draw to the record."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from pipeline.config.settings import Fidelity
from pipeline.records import describe_spec, measurement, weights_of
from pipeline.sources import read_source
from swiftkv.chats import choose_chats, draw_documents, tokenize_chat
from swiftkv.device import dtype_name
from swiftkv.errors import UserError
from swiftkv.io import write_json
from swiftkv.models import load_tokenizer
from swiftkv.spec import SwiftKVSpec


class ChatMeasurement:
    """A measurement on chats, from the draw to the record.

    Attributes:
        model: content of the model's source.json.
        tokenizer: the model's.
        documents: token ids of each chat drawn that has two tokens or more.

    Args:
        model_source: the model's source.json.
        chats: file of chats, one a line.
        draw: number of chats, tokens of a chat that count, and the seed of the choice.

    Raises:
        UserError: a file is missing or damaged, or no chat has two tokens.
    """

    def __init__(self, model_source: Path, chats: Path, draw: Fidelity) -> None:
        self._started, self._chats = time.monotonic(), chats
        self._draw = draw.model_dump(include={"documents", "max_length", "seed"})
        self.model = read_source(model_source)
        self.tokenizer = load_tokenizer(self.model["path"])
        documents, self._data = draw_documents(self.tokenizer, self.model["config"], chats, **self._draw)
        self.documents = [document for document in documents if len(document) > 1]
        if not self.documents:
            raise UserError(f"no chat of {chats} has two tokens; make it again")

    def prompts(self) -> list[int]:
        """Return for each of `documents` its tokens before the last answer; all of them where none begins."""
        known = {}
        for chat in choose_chats(self._chats, self._draw["documents"], self._draw["seed"]):
            messages = chat["messages"]
            with contextlib.suppress(UserError):  # the template refuses it
                document = tokenize_chat(self.tokenizer, messages, self._draw["max_length"])
                for number in reversed([at for at, message in enumerate(messages) if message["role"] == "assistant"]):
                    prompt = tokenize_chat(self.tokenizer, messages[:number], add_generation_prompt=True)
                    if 1 < len(prompt) < len(document) and document[: len(prompt)] == prompt:
                        known[tuple(document)] = len(prompt)
                        break
        return [known.get(tuple(document), len(document)) for document in self.documents]

    def write(
        self,
        measure: str,
        result: dict[str, Any],
        output: Path,
        variant: str = "baseline",
        checkpoint: Path | None = None,
        spec: SwiftKVSpec | None = None,
        kv_cache: str = "auto",
        **settings: Any,
    ) -> dict[str, Any]:
        """Write the measurement's record to `output`, and return it.

        Args are those of `records.measurement`; `settings` come beside the draw of chats.
        """
        record = measurement(
            measure,
            model=self.model,
            variant=variant,
            kv_cache=kv_cache,
            **weights_of(checkpoint),
            spec=describe_spec(spec, self.model["config"]),
            settings=self._draw | {"dtype": dtype_name()} | settings,
            result=result,
            seconds=time.monotonic() - self._started,
            data=self._data,
        )
        write_json(output, record)
        return record


def require_spec(folder: Path, actual: SwiftKVSpec, spec: SwiftKVSpec) -> None:
    """Refuse a checkpoint that was made for another spec than its variant has now; the `UserError` names the folder."""
    if actual != spec:
        raise UserError(f"{folder} is of another spec than {spec}; train the variant again")
