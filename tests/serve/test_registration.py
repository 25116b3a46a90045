"""The plugin registers names and touches nothing of vLLM; it works with the versions it was written for."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from swiftkv.serve import check_version
from swiftkv.serve.features import Feature

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
"""

REGISTER = """
from vllm import ModelRegistry
from swiftkv.architectures import ARCHITECTURES
before, known = state(), set(ModelRegistry.get_supported_archs())
serve.register()
serve.register()
after = state()
changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
assert len(before) > 2000, len(before)
assert not changed, changed
added = set(ModelRegistry.get_supported_archs()) - known
kinds = [(row.classes, kind) for row in ARCHITECTURES.values() for kind in ("SwiftKV", "MergeAllLayers")]
assert added == {"".join((*kind, "ForCausalLM")) for kind in kinds} - {"DeepseekV2MergeAllLayersForCausalLM"}
for architecture in added:
    assert ModelRegistry.models[architecture].load_model_cls().__name__ == architecture
print("untouched")
"""


LATENT = """
import contextlib, inspect
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl

implementations = [TritonMLAImpl]
with contextlib.suppress(ImportError):  # not in 0.26
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
    implementations.append(CPUMLAImpl)

assert not issubclass(MLAAttention, Attention)
assert "kv_sharing_target_layer_name" not in inspect.signature(MLAAttention.__init__).parameters
shape = dict(num_heads=16, head_size=576, scale=1.0, num_kv_heads=1, alibi_slopes=None, sliding_window=None,
             kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder", q_lora_rank=None, kv_lora_rank=512,
             qk_nope_head_dim=128, qk_rope_head_dim=64, qk_head_dim=192, v_head_dim=128, kv_b_proj=None)
for implementation in implementations:
    try:
        implementation(**shape, kv_sharing_target_layer_name="model.layers.1.self_attn.attn")
    except NotImplementedError as error:
        print(error)
    else:
        print("it shares")
"""


def start(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def registered():
    """A process that registers the plugin and then tries latent attention."""
    return start(UNTOUCHED + REGISTER + LATENT)


def test_vllm_is_untouched_and_registering_twice_is_harmless(registered):
    assert "untouched" in registered.stdout, registered.stderr[-3000:]


OTHER_VERSIONS = """
import sys
from swiftkv.serve import check_version

check_version("0.32.0+cpu")
assert "vllm.v1" not in sys.modules  # nothing is imported to judge a tested release
check_version("0.33.0")

import vllm.v1.attention.backends.utils as utils
from swiftkv.serve.features import absent_feature

assert absent_feature() is None
del utils.KVSharingFastPrefillMetadata
check_version("0.26.1")  # among the tested ones
check_version("0.40.0")
"""


@pytest.mark.parametrize("version", ["0.26.0", "0.26.1", "0.29.0", "0.32.0+cpu", "0.32.5.post1"])
def test_tested_versions_are_not_warned_of(version, monkeypatch):
    warned = []
    logger = SimpleNamespace(warning_once=lambda *words: warned.append(words))
    monkeypatch.setattr("vllm.logger.init_logger", lambda name: logger)
    monkeypatch.setattr("swiftkv.serve.features.absent_feature", lambda: None)
    check_version(version)
    assert not warned
    check_version("0.33.0")
    assert warned  # such a warning would have been seen


@pytest.fixture(scope="module")
def other_versions():
    return start(OTHER_VERSIONS)


def test_another_version_is_warned_of_in_one_sentence(other_versions):
    said = (other_versions.stdout + other_versions.stderr).splitlines()
    (line,) = [line for line in said if "0.33.0" in line]
    assert "0.26, 0.29, 0.32" in line


def test_a_version_that_lacks_something_is_refused_in_one_sentence_that_names_it(other_versions):
    assert other_versions.returncode == 1
    sentence = other_versions.stderr.splitlines()[-1]
    assert sentence.startswith("RuntimeError: the SwiftKV plugin needs vllm.v1.attention.backends.utils.KVSharingFast")
    assert all(part in sentence for part in ("0.40.0", "skipping prompt tokens", "0.26, 0.29, 0.32", "VLLM_PLUGINS="))


@pytest.mark.parametrize(
    ("change", "present"),
    [
        ({}, True),
        ({"module": "vllm.absent"}, False),
        ({"name": "CacheConfig.absent"}, False),
        ({"parameter": "absent"}, False),
    ],
)
def test_what_is_there_and_what_is_not(change, present):
    feature = Feature("", "vllm.config", "CacheConfig", "kv_sharing_fast_prefill")
    assert replace(feature, **change).present() is present


def test_the_reason_why_latent_attention_is_not_served_holds(registered):
    """Where it fails, vLLM has learnt to share these caches, and DeepSeek-V2 may be served (docs/serving.md)."""
    assert registered.returncode == 0, registered.stderr[-3000:]
    said = [line for line in registered.stdout.splitlines() if "shar" in line]
    assert said and set(said) == {"KV sharing is not supported for MLA"}
