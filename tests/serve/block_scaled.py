"""`generate.py` with a kernel for float8 weights in blocks, of which vLLM's own for processors needs AMX.

vLLM's layers load, split and keep the weights; only the product is made here, by its definition.
"""

import runpy
from pathlib import Path

import torch
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import Fp8BlockScaledMMLinearKernel
from vllm.platforms import PlatformEnum


class PlainKernel(Fp8BlockScaledMMLinearKernel):
    """Weights as what they stand for; inputs as they are."""

    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability=None):
        return True, None

    def apply_block_scaled_mm(self, A, B, As, Bs):
        rows, columns = self.weight_group_shape
        scale = Bs.repeat_interleave(rows, 0)[: B.size(0)].repeat_interleave(columns, 1)[:, : B.size(1)]
        return torch.nn.functional.linear(A, (B.float() * scale).to(A.dtype))


linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU] = [PlainKernel]
runpy.run_path(str(Path(__file__).with_name("generate.py")), run_name="__main__")
