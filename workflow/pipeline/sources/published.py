"""SwiftKV checkpoints that others trained: downloaded, and checked to be of the model and variant they stand for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.sources import ORIGIN, find_checkpoint, link_files, read_source
from swiftkv.architectures import check_loaded, key_value_heads
from swiftkv.errors import UserError
from swiftkv.io import atomic_path, read_json, write_json
from swiftkv.models.checkpoint import check_swiftkv, load_tokenizer
from swiftkv.models.sharing import attach, is_added
from swiftkv.spec import SwiftKVSpec

# What a SwiftKV checkpoint has in common with the model it was made of, whatever its training.
DIMENSIONS = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")


def fetch_checkpoint(
    model_source: Path, variant: str, source: dict[str, Any], spec: SwiftKVSpec, output: Path
) -> dict[str, Any]:
    """Make a published SwiftKV checkpoint a variant's own: a folder of links to its files, beside its identity.

    One that has the added weights alone is attached to the model, and takes what it lacks of a tokenizer from there.

    Args:
        model_source: source.json of the model it was made of.
        variant: name of the variant.
        source: the model's `checkpoints` entry, {hub, revision} or {local}.
        spec: the variant's rewiring.
        output: folder that is written; an existing one is replaced.

    Returns:
        Its identity: kind, id, revision, resolved.

    Raises:
        UserError: it cannot be had, is incomplete, or is of another model or variant.
    """
    model = read_source(model_source)

    def check(folder: Path) -> None:
        _check_variant(read_json(folder / "config.json"), spec, variant, model)
        if (folder / "tokenizer_config.json").is_file():  # else the model's serves added weights
            load_tokenizer(folder)

    path, identity = find_checkpoint(source, check)
    if is_added(path):
        # By a relative path, so that results can be moved.
        attach(Path(os.path.relpath(model["path"])), path, output)
        check_swiftkv(output)
    else:
        check_swiftkv(path)
        with atomic_path(output) as scratch:
            link_files(path, scratch, ORIGIN)
    load_tokenizer(output)
    write_json(output / ORIGIN, identity)
    print(f"{variant} of {model['title']}: {identity['kind']} {identity['id']}, {identity['resolved']}")
    return identity


def _check_variant(config: Mapping[str, Any], spec: SwiftKVSpec, variant: str, model: Mapping[str, Any]) -> None:
    """Refuse a config.json that is not that of the variant on the model, or cannot be loaded; the `UserError` names the field."""
    check_loaded(config, "the checkpoint")
    base = model["config"]
    needed = {
        "model_type": f"{base['model_type']}_swiftkv",
        **{key: base.get(key) for key in DIMENSIONS},
        "num_key_value_heads": key_value_heads(base),
        "num_key_value_layers": spec.num_key_value_layers,
        "key_value_group_size": spec.key_value_group_size,
        "swiftkv_num_key_value_heads": spec.num_key_value_heads,
    }
    stated = {"key_value_group_size": 1, "num_key_value_heads": config.get("num_attention_heads")} | dict(config)
    for key, value in needed.items():
        if stated.get(key) != value:
            raise UserError(
                f"the checkpoint cannot be variant {variant!r} of model {model['name']!r}: its {key} is "
                f"{stated.get(key)!r}, but {value!r} is needed"
            )
