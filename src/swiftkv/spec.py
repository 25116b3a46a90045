"""SwiftKVSpec: the layers that skip prefill and the groups that share a KV cache; without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

OURS = ("num_key_value_heads", "early_exit", "own_key_values")  # not published; `swiftkv_*` in a configuration


@dataclass(frozen=True)
class SwiftKVSpec:
    """A SwiftKV rewiring of a model with L layers (paper, Sec. 3).

    Attributes:
        num_hidden_layers: L, the layers of the model.
        num_key_value_layers: l, 0 < l <= L. Layers >= l compute K and V from the residual stream entering layer l
            (SingleInputKV, Sec. 3.2). l = L is the unchanged model.
        key_value_group_size: g, 1 <= g <= max(1, L - l): the number of consecutive layers >= l that share K and V
            (AcrossKV, Sec. 3.3); the last group is smaller if g does not divide L - l.
        num_key_value_heads: KV heads of layers >= l (Appendix C.1); None keeps the teacher's.
        early_exit: a second language-model head on the input of SingleInputKV (Appendix D.1); needs l < L.
        own_key_values: not in the paper: tokens that run all layers (of an answer, and the last of a prompt) use the
            model's own K, V and weights; SingleInputKV serves the rest of a prompt.

    Raises:
        ValueError: no model can have this shape.
    """

    num_hidden_layers: int
    num_key_value_layers: int
    key_value_group_size: int = 1
    num_key_value_heads: int | None = None
    early_exit: bool = False
    own_key_values: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), bool if field.default is False else int
            if type(value) is not kind and not (value is field.default is None):
                raise ValueError(
                    f"{field.name} is {value!r}, but must be {'true or false' if kind is bool else 'a whole number'}"
                )
        total, ordinary, group = self.num_hidden_layers, self.num_key_value_layers, self.key_value_group_size
        if total < 1:
            raise ValueError(f"num_hidden_layers is {total}, but a model has at least 1 layer")
        if not 0 < ordinary <= total:
            raise ValueError(
                f"num_key_value_layers is {ordinary}, but must lie between 1 and the model's {total} layers"
            )
        largest = max(1, total - ordinary)
        if not 1 <= group <= largest:
            raise ValueError(
                f"key_value_group_size is {group}, but must lie between 1 and {largest}, "
                f"as {total - ordinary} of the {total} layers take SwiftKV keys and values"
            )
        if self.num_key_value_heads is not None and self.num_key_value_heads < 1:
            raise ValueError(f"num_key_value_heads is {self.num_key_value_heads}, but must be at least 1")
        if self.own_key_values and (group > 1 or self.num_key_value_heads is not None or self.early_exit):
            raise ValueError(
                "own_key_values needs a cache for every layer, with the model's own heads, and no early exit: "
                "key_value_group_size is 1, num_key_value_heads is not given"
            )
        if self.early_exit and ordinary == total:
            raise ValueError(f"early_exit needs a layer to skip, but all {total} layers are ordinary")

    @classmethod
    def from_config(cls, config: Any) -> SwiftKVSpec:
        """Read the spec from an object with the published field names, such as a SwiftKV configuration."""
        ours = {name: getattr(config, f"swiftkv_{name}") for name in OURS if hasattr(config, f"swiftkv_{name}")}
        return cls(config.num_hidden_layers, config.num_key_value_layers, config.key_value_group_size, **ours)

    def to_config(self) -> dict[str, Any]:
        """Return the fields that `from_config` reads."""
        return {f"swiftkv_{name}" if name in OURS else name: value for name, value in asdict(self).items()}

    @property
    def fields(self) -> dict[str, int | None]:
        """The constructor's arguments without false flags."""
        return {name: value for name, value in asdict(self).items() if value is not False}

    @property
    def groups(self) -> tuple[range, ...]:
        """Layers >= l by AcrossKV group; empty for l = L."""
        first, last, size = self.num_key_value_layers, self.num_hidden_layers, self.key_value_group_size
        return tuple(range(start, min(start + size, last)) for start in range(first, last, size))

    @property
    def owners(self) -> tuple[int, ...]:
        """First layer of each group, which projects K and V."""
        return tuple(group.start for group in self.groups)

    def owner(self, layer: int) -> int:
        """Return the layer that computes the K and V of `layer`."""
        if layer < self.num_key_value_layers:
            return layer
        return layer - (layer - self.num_key_value_layers) % self.key_value_group_size

    @property
    def prefill_reduction(self) -> float:
        """Fraction of the layers that prefill skips, (L - l) / L."""
        return (self.num_hidden_layers - self.num_key_value_layers) / self.num_hidden_layers

    def kv_cache_reduction(self, teacher_heads: int) -> float:
        """Fraction of the KV cache saved, 1 - (l H + groups h) / (L H); negative if it grows.

        Args:
            teacher_heads: H, KV heads per layer before rewiring. h is `num_key_value_heads` or H.
        """
        heads = self.num_key_value_heads or teacher_heads
        kept = self.num_key_value_layers * teacher_heads + len(self.groups) * heads
        return float(1 - Fraction(kept, self.num_hidden_layers * teacher_heads))
