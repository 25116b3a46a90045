"""SwiftKV for Hugging Face models; importing this registers the classes with transformers' Auto classes.

`attention.py`, `swiftkv.py` and `configuration.py` hold what the architectures share, `classes.py` makes the classes of
each, `qwen3.py` and `deepseek_v2.py` hold what these have of their own (docs/adding/model.md). `rewire.py` makes a SwiftKV
model of an ordinary one, `checkpoint.py` reads and writes checkpoints.
"""

from swiftkv.models.checkpoint import (
    load_any,
    load_base,
    load_sharing,
    load_swiftkv,
    load_tokenizer,
    save_base,
    save_swiftkv,
    spread,
)
from swiftkv.models.rewire import rewire
from swiftkv.models.swiftkv import LowerState

__all__ = [
    "LowerState",
    "load_any",
    "load_base",
    "load_sharing",
    "load_swiftkv",
    "load_tokenizer",
    "rewire",
    "save_base",
    "save_swiftkv",
    "spread",
]
