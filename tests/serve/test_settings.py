"""Settings that vLLM settles late are refused where they give wrong tokens; no engine runs."""

import sys
from types import SimpleNamespace

import pytest
from tests.programs import run
from vllm.config import CUDAGraphMode

from swiftkv.errors import UserError
from swiftkv.serve.refusals import refuse_final


def backend(kind="FlashAttentionBackend", name="FLASH_ATTN", attends=False):
    """A class of attention backend by its own name and the one vLLM asks for."""
    functions = {"get_name": staticmethod(lambda: name), "supports_head_size": staticmethod([64, 128].count)}
    return type(kind, (), functions | {"forward_includes_kv_cache_update": attends})


def refused(graphs="FULL_AND_PIECEWISE", fast=True, drafter=None, attends_with=None, own=False, split=True, head=64):
    settings = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode[graphs], splitting_ops_contain_kv_cache_update=lambda: split
        ),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(swiftkv_own_key_values=own), get_head_size=lambda: head),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=fast),
        speculative_config=drafter and SimpleNamespace(method=drafter),
    )
    try:
        refuse_final(settings, attends_with or backend())
    except UserError as error:
        return str(error)


FLASHINFER = backend("FlashInferBackend", "FLASHINFER")
AITER = backend("AiterFlashAttentionBackend", "FLASH_ATTN")  # as vLLM calls it
TRITON = backend("TritonAttentionBackend", "TRITON_ATTN")
REFUSED = {
    "heads without a kernel": ({"head": 36}, "heads of 36 elements"),
    "a backend that attends where it writes": ({"attends_with": backend(attends=True)}, "--attention-backend"),
    "graphs of any batch": ({"graphs": "FULL"}, "cudagraph_mode FULL,"),
    "caches written within graphs": ({"own": True, "split": False}, "unified_kv_cache_update"),
    "drafts with FlashInfer": ({"drafter": "ngram", "attends_with": FLASHINFER}, "backend FLASHINFER"),
    "drafts with AITER": ({"drafter": "suffix", "attends_with": AITER}, "TRITON_ATTN"),
}
LET_THROUGH = {
    "defaults": {},
    "graphs of decoding": {"graphs": "FULL_DECODE_ONLY"},
    "graphs of any batch at full depth": {"graphs": "FULL", "fast": False},
    "caches written between graphs": {"own": True},
    "caches written without graphs": {"own": True, "split": False, "graphs": "NONE"},
    "FlashInfer": {"attends_with": FLASHINFER},
    "drafts with Triton": {"drafter": "ngram_gpu", "attends_with": TRITON},
    "drafts with FlashInfer at full depth": {"drafter": "ngram", "attends_with": FLASHINFER, "fast": False},
}


def test_only_settled_settings_that_give_wrong_tokens_are_refused():
    for name, (settings, word) in REFUSED.items():
        assert word in (refused(**settings) or "nothing"), name
    assert [name for name, settings in LET_THROUGH.items() if refused(**settings)] == []


def test_breakable_graphs_are_refused_where_there_are_graphs(monkeypatch):
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    assert "VLLM_USE_BREAKABLE_CUDAGRAPH=0" in refused(fast=False)
    assert refused(graphs="NONE") is None


OTHER_PLUGIN = """
import sys
from types import SimpleNamespace
from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from swiftkv import serve

def other():
    ModelRegistry.register_model("LlamaSwiftKVForCausalLM", "arctic_inference.vllm.swiftkv:LlamaSwiftKVForCausalLM")

for plugin in {"first": (other, serve.register), "last": (serve.register, other)}[sys.argv[1]]:
    plugin()
cache = SimpleNamespace(kv_sharing_fast_prefill=False)
model = SimpleNamespace(architecture="LlamaSwiftKVForCausalLM")
if hook := MODELS_CONFIG_MAP.get(model.architecture):
    hook.verify_and_update_config(SimpleNamespace(model_config=model, cache_config=cache))
assert not cache.kv_sharing_fast_prefill and "Qwen2SwiftKVForCausalLM" in MODELS_CONFIG_MAP
"""


@pytest.mark.parametrize("order", ["first", "last"])
def test_the_model_of_another_plugin_is_left_alone(order):
    ended = run(sys.executable, "-c", OTHER_PLUGIN, order)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "LlamaSwiftKVForCausalLM is served by the model of another plugin" in ended.stdout + ended.stderr
