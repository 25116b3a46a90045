"""What readers of transformers 4, the published one among them, need beside the files that transformers 5 saves."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from swiftkv.architectures import architecture
from swiftkv.io import read_json, write_json


def add_older_config(folder: Path) -> None:
    """Add to a saved config.json the keys that transformers 4 reads; 5 reads either form."""
    config = read_json(folder / "config.json")
    rope = dict(config["rope_parameters"])
    older = {"rope_theta": rope.pop("rope_theta"), "torch_dtype": config.get("dtype")}
    if rope.get("rope_type", "default") != "default":
        older["rope_scaling"] = rope
    experts = architecture(config["model_type"]).experts
    if experts and experts not in config:
        older[experts] = config["num_local_experts"]
    write_json(folder / "config.json", config | older)


def add_older_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the class of the tokenizer that `tokenizer` was loaded from and its special tokens as transformers 4 reads them."""
    file, base = folder / "tokenizer_config.json", Path(tokenizer.name_or_path) / "tokenizer_config.json"
    settings = read_json(file)
    own = read_json(base).get("tokenizer_class") if base.is_file() else None
    # transformers 4 does not know the class that 5 writes for most tokenizers.
    name = own or settings["tokenizer_class"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast" if name == "TokenizersBackend" else name
    if more := settings.pop("extra_special_tokens", None):
        settings["additional_special_tokens"] = more
    write_json(file, settings)
