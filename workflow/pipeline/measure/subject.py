"""A model and its variant, as they are served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

BASELINE = "baseline"


@dataclass(frozen=True)
class Subject:
    """A model and its variant.

    Attributes:
        identity: the model as records name it: name, title, kind, id, revision, resolved.
        variant: as in the configuration.
        kv_cache: "auto" or "fp8".
        folder: the checkpoint; of dummy weights, a folder with config.json and tokenizer.
        weights: "trained", "original" or "dummy".
        spec: the rewiring; None serves the model as it is.
        merge_all_layers: every layer computes its keys and values, one layer's are kept (Sec. 5.1).
        quantization: vLLM's --quantization, or None.
        baseline: what it is measured in turns with, at points that ask for it; None where that is itself.
    """

    identity: dict[str, Any]
    variant: str
    kv_cache: str
    folder: Path
    weights: str
    spec: SwiftKVSpec | None = None
    merge_all_layers: bool = False
    quantization: str | None = None
    baseline: Subject | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        return read_json(self.folder / "config.json")
