"""SwiftKV for Hugging Face models; importing this registers the classes with transformers' Auto classes.

`attention.py`, `swiftkv.py` and `configuration.py` hold what the architectures share; one small file an architecture
adds its classes and `architectures.py` lists them; `rewire.py` makes a SwiftKV model of an ordinary one, `checkpoint.py`
reads and writes checkpoints. Another architecture is one more file and one more line in `ARCHITECTURES`; where its
attention has other projections than q_proj, k_proj and v_proj, as DeepSeek-V2's, the file says how they make queries,
keys and values.
"""

from swiftkv.models.architectures import ARCHITECTURES
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
    "ARCHITECTURES",
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
