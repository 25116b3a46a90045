"""`generate.py` on vLLM's second model runner (V2) without a GPU: Triton's interpreter runs its kernels, in Python.

On a processor vLLM takes this runner where Triton has a backend for processors, which only builds of its own have. Told that
there is one, it asks nothing of it: with `TRITON_INTERPRET` no kernel is compiled.
"""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}  # Triton reads it as it is imported

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
runpy.run_path(str(Path(__file__).with_name("generate.py")), run_name="__main__")
