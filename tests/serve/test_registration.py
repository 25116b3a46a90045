"""The plugin registers names and touches nothing of vLLM; it works with the versions it was written for."""

import sys

from tests.programs import run

UNTOUCHED = """
import importlib, inspect
from swiftkv import serve

NAMES = '''
vllm.v1.worker.gpu_model_runner vllm.v1.worker.cpu_model_runner vllm.v1.worker.cpu_worker vllm.v1.core.sched.scheduler
vllm.v1.core.kv_cache_manager vllm.v1.core.kv_cache_utils vllm.v1.engine.core vllm.v1.attention.backends.cpu_attn
vllm.v1.attention.backends.utils vllm.model_executor.layers.attention.attention vllm.model_executor.layers.linear
vllm.model_executor.models.llama vllm.config.vllm vllm.config.model vllm.config.cache vllm.forward_context
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
assert len(before) > 1500, len(before)
assert not changed, changed
added = set(ModelRegistry.get_supported_archs()) - known
kinds = [(row.classes, kind) for row in ARCHITECTURES.values() for kind in ("SwiftKV", "MergeAllLayers")]
assert added == {"".join((*kind, "ForCausalLM")) for kind in kinds} - {"DeepseekV2MergeAllLayersForCausalLM"}
for architecture in added:
    assert ModelRegistry.models[architecture].load_model_cls().__name__ == architecture
print("untouched")
"""


def test_vllm_is_untouched_and_registering_twice_is_harmless():
    registered = run(sys.executable, "-c", UNTOUCHED + REGISTER)
    assert "untouched" in registered.stdout, registered.stderr[-3000:]


OTHER_VERSIONS = """
import sys
from swiftkv.serve import check_version

check_version("0.32.0+cpu")
assert "vllm.v1" not in sys.modules  # nothing is imported to judge a tested release
check_version("0.33.0")

import vllm.v1.attention.backends.utils as utils

del utils.KVSharingFastPrefillMetadata, sys.modules["swiftkv.serve.model"]
check_version("0.26.1")  # among the tested ones
check_version("0.40.0")
"""


def test_a_release_that_was_not_tested_is_warned_of_and_one_that_lacks_something_refused_by_name():
    ended = run(sys.executable, "-c", OTHER_VERSIONS)
    (line,) = [line for line in (ended.stdout + ended.stderr).splitlines() if "0.33.0" in line]
    assert "0.26, 0.29, 0.32" in line
    assert ended.returncode == 1
    sentence = ended.stderr.splitlines()[-1]
    assert sentence.startswith("RuntimeError: the SwiftKV plugin does not fit vLLM 0.40.0")
    assert all(part in sentence for part in ("KVSharingFastPrefillMetadata", "0.26, 0.29, 0.32", "VLLM_PLUGINS="))
