"""What cannot be served is refused with one sentence that names it, before an engine starts."""

import shutil

import pytest
from tests.serve.conftest import FULL_DEPTH

from swiftkv.io import read_json, write_json

pytestmark = pytest.mark.thorough


def checkpoint_with(of=None, engine=None, **config):
    """A case of a copy with a changed config.json: of the good checkpoint, or of another one beside it, by name."""

    def make(folder, to):
        shutil.copytree(folder.with_name(of) if of else folder, to)
        file = to / "config.json"
        write_json(file, read_json(file) | config)
        return {"model": to, "engine": engine or {}}

    return make


def settings(pretend=None, **engine):
    return lambda folder, to: {"model": folder, "pretend": pretend, "engine": engine}


def transferring(connector, **more):
    return {"kv_transfer_config": {"kv_connector": connector, "kv_role": "kv_both"} | more}


def speculating(method):
    def make(folder, to):
        draft = to / "draft"
        draft.mkdir(parents=True)
        config = read_json(folder / "config.json")
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
        write_json(draft / "config.json", config)
        speculation = {"method": method, "model": str(draft), "num_speculative_tokens": 2}
        return {"model": folder, "engine": {"speculative_config": speculation}}

    return make


MP = {"distributed_executor_backend": "mp"}
EXTRACT = {
    "method": "extract_hidden_states",
    "num_speculative_tokens": 1,
    "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
}
OWN, NIXL = {"swiftkv_own_key_values": True, "key_value_group_size": 1}, "NixlConnector"
# What is wrong: how the case for `generate.py` is made, and words of the sentence.
EXPECTED = {
    # By the headers; what else tensors may lack is in test_models_checkpoint.py, while they are read in test_weights.py.
    "wrong group size": (checkpoint_with(key_value_group_size=5), "(num_key_value_layers 10, key_value_group_size 5)"),
    "the teacher": (checkpoint_with(swiftkv=False), "swiftkv false"),
    "both modes": (settings(kv_sharing_fast_prefill=True, **FULL_DEPTH), "--kv-sharing-fast-prefill", "swiftkv_full_depth"),
    "no truth value": (settings(additional_config={"swiftkv_full_depth": "yes"}), "swiftkv_full_depth", "'yes'"),
    "pipeline": (settings(pipeline_parallel_size=2, **MP), "pipeline parallelism", "--tensor-parallel-size"),
    "prefill context": (settings(prefill_context_parallel_size=2, **MP), "context parallelism"),
    "decode context": (settings(decode_context_parallel_size=2, tensor_parallel_size=2, **MP), "context parallelism"),
    "micro-batches": (settings(enable_dbo=True), "--enable-dbo"),
    "EAGLE": (speculating("eagle"), "eagle speculation", "n-gram"),
    "draft model": (speculating("draft_model"), "draft_model speculation", "n-gram"),
    "n-grams on a GPU": (settings(speculative_config={"method": "ngram_gpu", "num_speculative_tokens": 2}), "ngram_gpu"),
    "hidden states": (settings(speculative_config=EXTRACT), "extract_hidden_states"),
    "pooling": (settings(runner="pooling"), "--runner pooling"),
    "other format in a layer": (
        settings(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["12"]), "--kv-cache-dtype-skip-layers 12"
    ),
    "another cache type": (settings(kv_cache_dtype="fp8_e5m2"), "--kv-cache-dtype fp8_e5m2", "fp8_e4m3"),
    "offloading": (settings(kv_offloading_size=1.0, kv_offloading_backend="lmcache"), "LMCacheMPConnector"),
    "connector": (settings(**transferring("MooncakeConnector")), "MooncakeConnector"),
    "a connector of its own": (
        settings(**transferring(NIXL, kv_connector_module_path="connectors")), f"connectors.{NIXL}"
    ),
    "connector and fewer heads": (
        checkpoint_with(swiftkv_num_key_value_heads=1, engine=transferring(NIXL)), "swiftkv_num_key_value_heads", NIXL
    ),
    "connector and own keys": (checkpoint_with(engine=transferring(NIXL), **OWN), "swiftkv_own_key_values", NIXL),
    "full depth and own keys": (checkpoint_with(engine=FULL_DEPTH, **OWN), "swiftkv_own_key_values", "original model"),
    "sleep mode": (settings("sleeping platform", enable_sleep_mode=True), "--enable-sleep-mode"),
    "windows in some layers": (checkpoint_with(of="windows"), "sliding window in some layers"),
    "more heads": (checkpoint_with(swiftkv_num_key_value_heads=8), "swiftkv_num_key_value_heads 8"),
    "qwen2 with a head size of its own": (
        checkpoint_with(of="windows", head_dim=16, use_sliding_window=False, layer_types=None), "head_dim 16", "32"
    ),
    "expert parallelism": (
        checkpoint_with(of="experts", engine={"enable_expert_parallel": True}), "--enable-expert-parallel"
    ),
    "quantized experts": (
        checkpoint_with(of="experts", engine={"quantization": "fp8", "dtype": "bfloat16"}), "experts quantized with fp8"
    ),
    "latent attention": (checkpoint_with(of="latent", engine={"max_model_len": 64}), "'deepseek_v2' cannot be served"),
    # Last: n-grams bring llvmlite, which vLLM's CPU build stumbles over as it starts another engine in the process.
    "drafts before a backend that reads on the host": (
        settings("reads on host", speculative_config={"method": "ngram", "num_speculative_tokens": 2}), "CPU_ATTN"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(engines, checkpoint, tmp_path_factory):
    folder, new = checkpoint("llama", 10, 2), tmp_path_factory.mktemp("broken")
    windows = checkpoint("qwen2", 10, 2, use_sliding_window=True, sliding_window=48, max_window_layers=10)
    folder.with_name("windows").symlink_to(windows)
    folder.with_name("latent").symlink_to(checkpoint("deepseek_v2", 10, 2))
    folder.with_name("experts").symlink_to(checkpoint("qwen3_moe", 10, 2))
    cases = {name: make(folder, new / name.replace(" ", "-")) for name, (make, *_) in EXPECTED.items()}
    return engines(cases, refused=True)


@pytest.mark.parametrize("name", EXPECTED)
def test_is_refused_with_its_name_and_reason(answers, name):
    # Where vLLM wraps a configuration's error, the sentence is one line of several.
    lines = answers[name]["error"].splitlines()
    assert any(all(word in line for word in EXPECTED[name][1:]) for line in lines), lines
    assert len(lines) == 1 or "ValidationError" in lines[0]
