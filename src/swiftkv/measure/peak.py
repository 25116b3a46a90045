"""Dense peak of the GPUs whose model FLOPs utilization is stated, as their data sheets give it (SXM, without sparsity)."""

from __future__ import annotations

import re

# Name as CUDA gives it -> TFLOP/s by number format. PCIe and NVL boards have other clocks and are left out.
_PEAKS = (
    (re.compile(r"NVIDIA (H100 80GB HBM3|H200|H800)"), {"16-bit": 989.4, "fp8": 1978.9}),
    (re.compile(r"NVIDIA A100[- ](?!.*MIG).*"), {"16-bit": 312.0}),
)


def peak_tflops(gpu: str, dtype: str, quantization: str | None) -> float | None:
    """Dense TFLOP/s of one GPU in the served number format; None where the GPU or the format is not known.

    Args:
        gpu: its name, as CUDA gives it.
        dtype: of weights and activations, if they are not quantized.
        quantization: as vLLM names it.
    """
    if quantization is None:
        number = "16-bit" if dtype in ("bfloat16", "float16") else None
    else:
        number = "fp8" if quantization == "fp8" else None
    for name, peaks in _PEAKS:
        if name.fullmatch(gpu):
            return peaks.get(number)
    return None
