"""On an H100, vLLM and the plugin take the branches that the plugin is written for; see `pretend_h100.py`."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.programs import ROOT, succeed

_vllm = find_spec("vllm")
_kernels = Path(_vllm.origin).parent.glob("vllm_flash_attn/_vllm_fa3_C*.so") if _vllm and _vllm.origin else ()
pytestmark = pytest.mark.skipif(not any(_kernels), reason="needs vLLM's build for CUDA (make setup-gpu), but no GPU")

CASES = ["plain", "across", "eager", "own", "parallel"]
GRAPHS = [case for case in CASES if case != "eager"]


@pytest.fixture(scope="module")
def chosen():
    return json.loads(succeed(sys.executable, ROOT / "tests/contract/pretend_h100.py"))


@pytest.mark.parametrize("case", CASES)
def test_runner_attention_and_graphs(chosen, case):
    found = chosen[case]
    assert (found["runner"], found["fast_prefill"], found["async_scheduling"]) == (2, True, True)
    assert (found["backends"], found["flash_attention"], found["forward_writes"]) == (["FLASH_ATTN"], [3], False)
    assert (found["queries_quantized"], found["graph_support"]) == (case == "across", "ALWAYS")
    assert found["graphs"] == (["FULL_AND_PIECEWISE", 51, 512] if case in GRAPHS else ["NONE", 0, 0])


# Parameters, in thousands of millions; rows of the projection to keys and values; caches; their bytes a token.
SHAPES = {
    "plain": (8.030, 16 * 2 * 8 * 128, 32, 2 * 8 * 128 * 2),
    "across": (7.930, 4 * 2 * 8 * 128, 20, 2 * 8 * 128),
    "own": (8.164, 16 * 2 * 8 * 128, 32, 2 * 8 * 128 * 2),
    "parallel": (2.008, 16 * 2 * 2 * 128, 32, 2 * 2 * 128 * 2),  # of one rank of four
}


@pytest.mark.parametrize("case", SHAPES)
def test_model_and_caches(chosen, case):
    found, (parameters, rows, caches, size) = chosen[case], SHAPES[case]
    assert round(found["parameters"] / 1e9, 3) == parameters
    assert found["kv_projection"] == [rows, 4096]
    assert (found["caches"], found["cache_bytes"], found["cache_groups"]) == (caches, [size], 1)
    # Owners of caches beside the layers below l; the layers that skip rows have a builder of their own, which notes steps.
    lower, upper = ["FlashAttentionBackend", caches], ["FastPrefillNotingFlashAttentionBackend", 16]
    assert found["attention_groups"] == [lower, upper]


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_of_500_tokens_beside_two_requests_that_decode(chosen, case):
    step, graphs = chosen[case]["step"], case in GRAPHS
    splits = 32 if graphs else 0  # 0: as many as FlashAttention likes
    assert step["lower"] == [502, 500, [0, 500, 501, 502], splits]
    assert step["upper"] == [3, 1, [0, 1, 2, 3], splits]
    assert step["dispatched"] == (["PIECEWISE", 512] if graphs else ["NONE", 502])
    assert step["rows"] == [499, 500, 501] + [501] * graphs  # padded to a captured size
    assert step["planned_in"] == ["torch.float8_e4m3fn" if case == "across" else "torch.bfloat16"]
