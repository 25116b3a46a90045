"""Configuration fields that SwiftKV adds to an architecture's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swiftkv.architectures import architecture, check_latent_heads
from swiftkv.spec import OURS, SwiftKVSpec

PUBLISHED_FIELDS = ("swiftkv", "num_key_value_layers", "key_value_group_size")


@dataclass(kw_only=True)
class SwiftKVConfigMixin:
    """The fields of the published checkpoints, and three of ours, `swiftkv_*`; see `SwiftKVSpec`.

    Attributes:
        swiftkv: True runs the student, False the teacher.
        num_key_value_layers: l; None means all layers, an unchanged model.
        swiftkv_num_key_value_heads: KV heads of layers >= l (Appendix C.1); None means `num_key_value_heads`.

    Raises:
        ValueError: the fields do not fit the model.
    """

    swiftkv: bool = False
    num_key_value_layers: int | None = None
    key_value_group_size: int = 1
    swiftkv_num_key_value_heads: int | None = None
    swiftkv_early_exit: bool = False
    swiftkv_own_key_values: bool = False

    def __post_init__(self, **kwargs) -> None:
        if self.num_key_value_layers is None:
            self.num_key_value_layers = self.num_hidden_layers
        super().__post_init__(**kwargs)
        spec = SwiftKVSpec.from_config(self)
        check_latent_heads(architecture(self.model_type).latent, self.swiftkv_num_key_value_heads)
        teacher_heads = self.num_key_value_heads
        heads = upper_key_value_heads(self)
        if self.num_attention_heads % heads:
            raise ValueError(
                f"{heads} SwiftKV key/value heads do not divide the {self.num_attention_heads} attention heads"
            )
        if max(heads, teacher_heads) % min(heads, teacher_heads):
            raise ValueError(
                f"{heads} SwiftKV key/value heads neither merge nor repeat the teacher's {teacher_heads} evenly"
            )
        types = layer_types(self)
        for group in spec.groups:
            if len({types[layer] for layer in group}) > 1:
                raise ValueError(
                    f"layers {group.start} to {group.stop - 1} would share keys and values, but some have a sliding "
                    "window and some have not"
                )

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields to save: always the published ones, ours only if set."""
        fields = super().to_diff_dict()
        for name in OURS:
            if not getattr(self, f"swiftkv_{name}"):
                fields.pop(f"swiftkv_{name}", None)
        return fields | {name: getattr(self, name) for name in PUBLISHED_FIELDS}


def upper_key_value_heads(config: Any) -> int:
    """Return the KV heads of layers >= l."""
    return getattr(config, "swiftkv_num_key_value_heads", None) or config.num_key_value_heads


def layer_types(config: Any) -> list[str]:
    """Return "full_attention" or "sliding_attention" for each layer."""
    if (types := getattr(config, "layer_types", None)) is not None:
        return list(types)
    sliding = getattr(config, "sliding_window", None) is not None
    return ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
