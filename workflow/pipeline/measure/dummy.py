"""Folders without weights, for vLLM's `--load-format dummy`: speed and memory of a model nobody has to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.sources import read_source
from swiftkv.architectures import architecture, check_served
from swiftkv.errors import UserError
from swiftkv.io import atomic_path
from swiftkv.spec import SwiftKVSpec


def dummy_checkpoint(source: Path, spec: SwiftKVSpec | None, output: Path, tokenizer: str | None = None) -> None:
    """Write a checkpoint folder without weights, for serving with `--load-format dummy`, whole or not at all.

    Args:
        source: source.json of a model, or the file of its dimensions.
        spec: the variant's; null leaves the model as it is.
        output: the folder, with config.json as a checkpoint with trained weights has it, and a tokenizer.
        tokenizer: hub id or folder of the model's own tokenizer, if it has one.

    Raises:
        UserError: `source` holds no model configuration, or the architecture is unknown, not served or does not fit the spec.
    """
    from transformers import AutoConfig

    from swiftkv.models.rewire import swiftkv_config

    model = read_source(source)
    if not isinstance(model, dict) or not isinstance(model.get("config"), dict):
        raise UserError(f"{source} holds no model configuration: it has no `config`")
    config = model["config"]
    architecture(config.get("model_type"))
    if spec is None:
        written = AutoConfig.for_model(**config)
    else:
        check_served(config["model_type"])
        written = swiftkv_config(config, spec)
    words = _tokenizer(tokenizer or model.get("path"), config["vocab_size"])
    with atomic_path(output) as scratch:
        written.save_pretrained(scratch)
        words.save_pretrained(scratch)


def _tokenizer(wanted: str | None, vocab_size: int) -> Any:
    """The model's own tokenizer; where it cannot be had one token a word, enough for random token ids and their answers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if wanted:
        try:
            return AutoTokenizer.from_pretrained(wanted)
        except Exception:  # gated, offline or missing: any of them means another one
            print(f"the tokenizer of {wanted} cannot be had; numbered words stand for it", flush=True)
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
