"""`generate.py` on vLLM's second model runner (V2) without a GPU: Triton's interpreter runs its kernels, in Python.

On a processor vLLM takes this runner where Triton has a backend for processors, which only builds of its own have. Told that
there is one, it asks nothing of it: with `TRITON_INTERPRET` no kernel is compiled.
"""

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy

os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}  # Triton reads it as it is imported
sys.path.append(str(Path(__file__).parents[2] / ".venv/triton"))  # where `make test-thorough` puts it

from triton.backends import backends
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def create_splat(self, block_type, scalar):
    """Triton's own takes the number format of what was compared for that of a comparison, which masks may not have."""
    return TensorHandle(numpy.full(block_type.shape, scalar.data, dtype=scalar.data.dtype), scalar.dtype.scalar)


InterpreterBuilder.create_splat = create_splat
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
runpy.run_path(str(Path(__file__).with_name("generate.py")), run_name="__main__")
