"""SwiftKV for Hugging Face models; importing this registers the classes with transformers' Auto classes.

`attention.py`, `swiftkv.py` and `configuration.py` are shared by all architectures, `qwen3.py`, `qwen3_moe.py` and
`deepseek_v2.py` hold the differences of these (docs/adding/model.md), `classes.py` builds the classes. `rewire.py` turns an
ordinary model into a SwiftKV model, `checkpoint.py` reads checkpoints and `saving.py` writes them, in the forms of
`sharing.py`.
"""

from swiftkv.models.checkpoint import (
    load_any,
    load_base,
    load_sharing,
    load_swiftkv,
    load_tokenizer,
    spread,
)
from swiftkv.models.rewire import rewire
from swiftkv.models.saving import save_model
from swiftkv.models.swiftkv import LowerState

__all__ = [
    "LowerState",
    "load_any",
    "load_base",
    "load_sharing",
    "load_swiftkv",
    "load_tokenizer",
    "rewire",
    "save_model",
    "spread",
]
