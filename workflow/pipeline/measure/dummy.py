"""Folders without weights, for vLLM's `--load-format dummy`: speed and memory of a model nobody has to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.sources import read_source
from swiftkv.architectures import architecture, check_served
from swiftkv.errors import UserError
from swiftkv.io import atomic_path
from swiftkv.spec import SwiftKVSpec


def dummy_checkpoint(source: Path, spec: SwiftKVSpec | None, output: Path) -> None:
    """Write a checkpoint folder without weights, for serving with `--load-format dummy`, whole or not at all.

    Args:
        source: source.json of a model, or the file of its dimensions.
        spec: the variant's; null leaves the model as it is.
        output: the folder, with config.json as a checkpoint with trained weights has it, and a tokenizer of numbered words.

    Raises:
        UserError: `source` holds no model configuration, or the architecture is unknown, not served or does not fit the spec.
    """
    from transformers import AutoConfig

    from swiftkv.models.older import add_older_config
    from swiftkv.models.rewire import swiftkv_config

    config = read_source(source).get("config")
    if not config:
        raise UserError(f"{source} holds no model configuration: it has no `config`")
    architecture(config.get("model_type"))
    if spec is None:
        written = AutoConfig.for_model(**config)
    else:
        check_served(config["model_type"])
        written = swiftkv_config(config, spec)
    with atomic_path(output) as scratch:
        written.save_pretrained(scratch)
        add_older_config(scratch)
        numbered_words(config["vocab_size"]).save_pretrained(scratch)


def numbered_words(vocab_size: int) -> Any:
    """A tokenizer of one token a word, enough for random token ids and their answers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{number}": number for number in range(vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
