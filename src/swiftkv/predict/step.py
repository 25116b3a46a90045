"""The time of one engine step: FLOPs, bytes and all-reduces of its lower and its upper half."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from swiftkv.cost import kv_bytes_per_token
from swiftkv.dimensions import Dimensions
from swiftkv.predict.device import Device
from swiftkv.spec import SwiftKVSpec

# Numbers of 16 bits that kernels between the products read and write for a token in a layer, in hidden and in MLP widths:
# two norms with their residuals 4 + 4, rotary embedding 2.5; the activation 3.
_HIDDEN, _INTERMEDIATE = 10.5, 3


@dataclass(frozen=True)
class Step:
    """What one step computes.

    Attributes:
        prompt: prompt tokens.
        pairs: pairs (query, key) of these tokens' causal attention, in one layer.
        ends: requests they belong to; each has one row in the upper half.
        ends_context: tokens that these rows see, summed.
        decoding: requests that decode one token.
        context: tokens that these see, summed.
    """

    prompt: int = 0
    pairs: int = 0
    ends: int = 0
    ends_context: int = 0
    decoding: int = 0
    context: int = 0


@dataclass(frozen=True)
class Served:
    """A model on devices that serve it together. Every layer is taken for one with full attention.

    Attributes:
        arch: the model's dimensions.
        spec: the variant's; None is the unchanged model.
        device: one of the devices.
        devices: how many.
        fp8: whether weights are FP8, and products too.
        fp8_cache: whether the KV cache is.
        merged: whether one layer's cache stands for all (Merge-all-Layers, Sec. 5.1); all are still computed and read.
    """

    arch: Dimensions
    spec: SwiftKVSpec | None
    device: Device
    devices: int = 1
    fp8: bool = False
    fp8_cache: bool = False
    merged: bool = False

    @property
    def peak_flops(self) -> float:
        """Peak of products on one device, in the format of the weights, a second."""
        return self.device.fp8_flops or self.device.flops if self.fp8 else self.device.flops

    @cached_property
    def lower(self) -> int:
        """Layers that every token goes through."""
        return self.arch.num_hidden_layers if self.spec is None else self.spec.num_key_value_layers

    @cached_property
    def upper(self) -> int:
        """Layers that only tokens which are sampled from go through."""
        return self.arch.num_hidden_layers - self.lower

    @cached_property
    def cache_bytes(self) -> int:
        """Of one token, in all layers."""
        return kv_bytes_per_token(self.arch, self.spec, "fp8" if self.fp8_cache else "bfloat16", merged=self.merged)

    @cached_property
    def _weights(self) -> tuple[int, int, int, int]:
        """Of the lower layers, of SingleInputKV's keys and values, of the upper layers, of the head."""
        arch, own = self.arch, self.arch.query_weights + self.arch.output_weights
        mlp, groups = arch.mlp_weights(), 0 if self.spec is None or not self.upper else len(self.spec.groups)
        kept = sum(arch.key_value_weights()) if groups and self.spec.own_key_values else 0
        return (
            self.lower * (own + sum(arch.key_value_weights())) + sum(mlp[: self.lower]),
            groups * sum(arch.key_value_weights(self._upper_heads)),
            self.upper * (own + kept) + sum(mlp[self.lower :]),
            arch.vocab_size * arch.hidden_size,
        )

    @property
    def _upper_heads(self) -> int | None:
        return None if self.spec is None else self.spec.num_key_value_heads

    def seconds(self, step: Step) -> float:
        """How long a step takes."""
        device, rows, sampled = self.device, step.prompt + step.decoding, step.ends + step.decoding
        lower, added, upper, head = self._weights
        seconds = self._products(rows, lower) + self._products(sampled, head)
        seconds += self._layers(self.lower, rows, step.pairs, step.context, self.arch.cached())
        if self.upper:
            seconds += self._products(rows, added) + self._products(sampled, upper)
            cached = self.arch.cached(self._upper_heads)
            seconds += self._layers(self.upper, sampled, step.ends_context, step.context, cached)
        return seconds + device.layer * self.arch.num_hidden_layers + device.row * rows

    def _products(self, rows: int, weights: int) -> float:
        """Products of so many rows with weights that are read once: bound by the peak or by the memory."""
        device = self.device
        if not rows:
            return 0.0
        computing = 2 * rows * weights / (self.peak_flops * device.compute_share)
        reading = weights * (1 if self.fp8 else 2) / (device.bandwidth * device.memory_share)
        return max(computing, reading) / self.devices

    def _layers(self, layers: int, rows: int, pairs: int, context: int, cached: int) -> float:
        """What layers take besides products: attention, the cache that decoding reads, kernels in between, all-reduces."""
        device, arch = self.device, self.arch
        bandwidth = device.bandwidth * device.memory_share
        seconds = pairs * arch.pair_flops / (device.flops * device.compute_share)
        seconds += context * cached * (1 if self.fp8_cache else 2) / bandwidth
        if device.kernels:
            seconds += rows * 2 * (_HIDDEN * arch.hidden_size + _INTERMEDIATE * arch.intermediate_size) / bandwidth
        seconds /= self.devices
        if self.devices > 1 and device.link and rows:
            # Two a layer; a ring moves 2 (n - 1) / n of the bytes over the bus.
            moved = rows * arch.hidden_size * 2 * 2 * (self.devices - 1) / self.devices
            seconds += 2 * (device.reduce + moved / device.link)
        return layers * seconds
