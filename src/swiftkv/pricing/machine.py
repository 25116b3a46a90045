"""How fast a job's machine is assumed to be: the section `planning` of the configuration, with a reason for each number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TERA, GIGA = 10**12, 10**9


class Machine:
    """What a job computes on: GPUs, or cores of a processor."""

    def __init__(self, config: Mapping[str, Any], gpus: int, threads: int = 1) -> None:
        """Read the assumptions.

        Args:
            config: the configuration.
            gpus: of the job; without any it computes on `threads` cores.
        """
        self.kind = "gpu" if gpus else "cpu"
        self.assumed: Mapping[str, Any] = config["planning"][self.kind]
        # transformers spreads a model over GPUs of which one works at a time; cores work together.
        self.together, self.alone = (gpus, 1) if gpus else (threads, threads)

    def __getitem__(self, name: str) -> float:
        """The value of an assumption."""
        return self.assumed[name]["value"]

    def compute(self, flops: float, work: str, devices: int = 1) -> float:
        """Seconds of matrix products in 16 bits; `work` names the assumed share of the peak."""
        return flops / (devices * self["tflops"] * TERA * self[work])

    def decode(self, steps: float, weights: float, layers: int, devices: int = 1) -> float:
        """Seconds of decoding steps, each of which reads the weights (bytes) and goes through the layers."""
        return steps * (weights / (devices * self["memory_gb"] * GIGA) + layers * self["layer_ms"] / 1000)

    def load(self, weights: float) -> float:
        """Seconds from the disk into memory, or back; weights in bytes."""
        return weights / (self["load_gb"] * GIGA)
