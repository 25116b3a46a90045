"""How big a model is: FLOPs of a layer, parameters, bytes, as `swiftkv.cost` counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from swiftkv.architectures import Architecture, architecture
from swiftkv.config import Config
from swiftkv.config.sources import LocalModel, PackagedModel
from swiftkv.cost import added_weights, parameter_count, prefill_flops
from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.records import read_json
from swiftkv.section import plain
from swiftkv.sources import package_file
from swiftkv.spec import SwiftKVSpec

TOKENIZER_BYTES = 10**7
TEXT_BYTES = 4  # of one token as text, with what JSON adds; 3.7 at local scale
# What config.json calls a GGUF file's fields, with their ending there.
GGUF = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}


def dimensions(config: Config, model: str, root: Path) -> dict[str, Any] | None:
    """A model's config.json, as far as sizes go, without downloading anything; None where nothing says it.

    Args:
        config: the configuration.
        model: its name there.
        root: folder of the project, in which `architecture` files lie.
    """
    entry = config.models[model]
    resolved = Path(config.pathvars.results) / "models" / model / "source.json"
    if resolved.exists():
        return read_json(resolved)["config"]
    source = entry.source
    if entry.architecture:
        return read_json(root / entry.architecture)["config"]
    if isinstance(source, PackagedModel):
        return _gguf(package_file(source.package, source.gguf)) | plain(source.random or {})
    file = Path(source.local).expanduser() / "config.json" if isinstance(source, LocalModel) else None
    return read_json(file) if file and file.exists() else None


@cache  # reading one takes seconds
def _gguf(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    kind = fields["general.architecture"].contents()
    found = {name: fields[f"{kind}.{field}"].contents() for name, field in GGUF.items() if f"{kind}.{field}" in fields}
    # The head is the embedding where the file has none, which its tensors tell; packaged models so far tie them.
    return {"model_type": kind, "tie_word_embeddings": True, **found}


@dataclass(frozen=True)
class Size:
    """A model's size.

    Attributes:
        config: its config.json, as far as sizes go.
        fp8: whether its weights are stored in 8 bits.
    """

    config: Mapping[str, Any]
    fp8: bool = False

    @classmethod
    def of(cls, config: Config, model: str, root: Path) -> Size:
        """The size of a model of the configuration.

        Raises:
            UserError: nothing says its dimensions yet, or there is no cost model for its family.
        """
        found = dimensions(config, model, root)
        if found is None:
            raise UserError(f"nothing says how big model {model!r} is before it is downloaded; name its `architecture`")
        named = "fp8" in getattr(config.models[model].source, "hub", "").lower()
        size = cls(found, fp8="quantization_config" in found or named)
        _ = size.parameters
        return size

    @property
    def layers(self) -> int:
        """L."""
        return self.config["num_hidden_layers"]

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.config["hidden_size"]

    @property
    def architecture(self) -> Architecture:
        """What is known of its architecture."""
        return architecture(self.config.get("model_type"))

    @cached_property
    def arch(self) -> Dimensions:
        """The dimensions that cost depends on."""
        return Dimensions.from_config(self.config)

    @cached_property
    def parameters(self) -> int:
        """All parameters of the unchanged model."""
        return parameter_count(self.config)

    @property
    def layer_parameters(self) -> int:
        """Of one layer, in the mean."""
        return (self.parameters - self._vocabulary) // self.layers

    @property
    def _vocabulary(self) -> int:
        return self.config["vocab_size"] * self.width * (1 if self.config.get("tie_word_embeddings") else 2)

    @property
    def head(self) -> int:
        """FLOPs of one token's logits."""
        return 2 * self.config["vocab_size"] * self.width

    def layer(self, context: float) -> float:
        """Mean FLOPs of a token in one ordinary layer, in causal sequences of `context` tokens."""
        context = max(1, round(context))
        return sum(prefill_flops(self.arch, None, context).values()) / (context * self.layers)

    @property
    def keys_and_values(self) -> int:
        """Rows of what a fitted start regresses to in one layer: keys and values, or the latent and the rotary key."""
        return self.arch.cached()

    def trained(self, spec: SwiftKVSpec | None, train: str) -> int:
        """Parameters that a recipe's `train` trains."""
        if spec is None or train == "all":
            return self.parameters
        count = added_weights(self.arch, spec) + (self.head // 2 if spec.early_exit else 0)
        if train == "upper_layers":
            # Everything else in these layers; the projections above take the place of the teacher's.
            upper = self.layers - spec.num_key_value_layers
            own = added_weights(self.arch, SwiftKVSpec(self.layers, self.layers - 1))
            count += upper * (self.layer_parameters - own)
        return count

    def state_bytes(self, spec: SwiftKVSpec | None, train: str) -> int:
        """Of one training state: weight and AdamW's two moments of all that is trained, float32."""
        return 12 * self.trained(spec, train)

    @property
    def bytes(self) -> int:
        """Of its weights; with FP8 all but the vocabulary's are one byte."""
        return 2 * self._vocabulary + (self.parameters - self._vocabulary) * (1 if self.fp8 else 2)

    def checkpoint_bytes(self, spec: SwiftKVSpec | None) -> int:
        """Of a trained checkpoint, in which the teacher's projections stay beside the new ones."""
        if spec is None:
            return self.bytes
        return (
            self.bytes + added_weights(self.arch, spec) * (1 if self.fp8 else 2) + (self.head if spec.early_exit else 0)
        )
