"""The number format that `auto` means."""

import pytest
import torch

from swiftkv import device


@pytest.mark.parametrize(
    ("has", "kernels", "expected"),
    [
        ({"avx2"}, "AVX2", torch.float32),
        ({"avx2", "avx512_f", "avx512_vnni"}, "AVX512", torch.float32),
        ({"avx512_f", "avx512_bf16"}, "AVX512", torch.bfloat16),
        ({"avx512_f", "amx_bf16"}, "AVX512", torch.bfloat16),
        ({"avx512_f", "avx512_bf16"}, "AVX2", torch.float32),  # torch held to AVX2 by ATEN_CPU_CAPABILITY
    ],
)
def test_auto_is_bfloat16_where_the_device_multiplies_it(has, kernels, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kernels)
    assert device.compute_dtype("cpu") == expected
    assert device.compute_dtype("cuda") == torch.bfloat16
    assert device.dtype_name("auto", "cpu") == str(expected).removeprefix("torch.")
    assert device.dtype_name("float16", "cpu") == "float16"
