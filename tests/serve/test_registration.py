"""The plugin registers names and touches nothing of vLLM; it works with the versions it was written for."""

import subprocess
import sys

import pytest

from swiftkv.serve import check_version

UNTOUCHED = """
import importlib, inspect
from swiftkv import serve

NAMES = '''
vllm.v1.worker.gpu_model_runner vllm.v1.worker.cpu_model_runner vllm.v1.worker.gpu_worker vllm.v1.worker.cpu_worker
vllm.v1.core.sched.scheduler vllm.v1.core.kv_cache_manager vllm.v1.core.kv_cache_utils vllm.v1.engine.core
vllm.v1.engine.llm_engine vllm.v1.engine.input_processor vllm.v1.attention.backends.cpu_attn vllm.v1.attention.backends.utils
vllm.model_executor.layers.attention.attention vllm.model_executor.layers.linear vllm.model_executor.models.llama
vllm.model_executor.models.mistral vllm.model_executor.models.qwen2 vllm.model_executor.models.qwen3 vllm.entrypoints.llm
vllm.config.vllm vllm.config.model vllm.config.cache vllm.engine.arg_utils vllm.forward_context
vllm.model_executor.model_loader.default_loader
'''.split()


def state():
    found = {}
    for name in NAMES:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            found[name, key] = id(value)
            if inspect.isclass(value) and value.__module__.startswith("vllm"):
                found |= {(name, key, member): id(vars(value)[member]) for member in vars(value)}
    return found


state()  # imports everything
import swiftkv.serve.model, swiftkv.serve.merge_all_layers
"""

REGISTER = """
from vllm import ModelRegistry
before, known = state(), set(ModelRegistry.get_supported_archs())
serve.register()
serve.register()
after = state()
changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
assert len(before) > 2000, len(before)
assert not changed, changed
assert set(ModelRegistry.get_supported_archs()) - known == set(serve.ARCHITECTURES), known
for architecture in serve.ARCHITECTURES:
    assert ModelRegistry.models[architecture].load_model_cls().__name__ == architecture
print("untouched")
"""


LATENT = """
import inspect
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl

assert not issubclass(MLAAttention, Attention)
assert "kv_sharing_target_layer_name" not in inspect.signature(MLAAttention.__init__).parameters
shape = dict(num_heads=16, head_size=576, scale=1.0, num_kv_heads=1, alibi_slopes=None, sliding_window=None,
             kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", q_lora_rank=None, kv_lora_rank=512,
             qk_nope_head_dim=128, qk_rope_head_dim=64, qk_head_dim=192, v_head_dim=128, kv_b_proj=None)
for implementation in (CPUMLAImpl, TritonMLAImpl):
    try:
        implementation(**shape, kv_sharing_target_layer_name="model.layers.1.self_attn.attn")
    except NotImplementedError as error:
        print(error)
"""


def run(program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_vllm_is_untouched_and_registering_twice_is_harmless():
    assert "untouched" in run(
        UNTOUCHED.replace("import swiftkv.serve.model, swiftkv.serve.merge_all_layers", "") + REGISTER
    )


@pytest.mark.parametrize("version", ["0.26.0", "0.26.1", "0.30.2rc1", "0.32.0+cpu", "0.32.5.post1"])
def test_supported_versions(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.25.9", "0.33.0", "1.0.0", "0.33.0rc1+cu130"])
def test_other_versions_are_refused_in_one_sentence(version):
    with pytest.raises(RuntimeError) as error:
        check_version(version)
    sentence = str(error.value)
    assert version in sentence and "0.26 to 0.32" in sentence and "VLLM_PLUGINS=" in sentence and "\n" not in sentence


def test_the_reason_why_latent_attention_is_not_served_holds():
    """Where it fails, vLLM has learnt to share these caches, and DeepSeek-V2 may be served (docs/serving.md)."""
    assert run(LATENT).split("\n")[-3:] == ["KV sharing is not supported for MLA"] * 2 + [""]
