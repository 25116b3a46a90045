"""What cannot be served is refused with one sentence that names it, before and while weights are read."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.thorough


def changed(folder, to, tensors=None, **config):
    """Copy a checkpoint, with `tensors(dict)` applied to its weights and `config` to its config.json."""
    shutil.copytree(folder, to)
    if config:
        file = to / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if tensors is not None:
        weights = load_file(to / "model.safetensors")
        tensors(weights)
        save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


K10 = "model.layers.10.self_attn.k_proj_swiftkv.weight"
UNKNOWN = "model.layers.11.self_attn.k_proj_swiftkv.weight"
FOREIGN = "model.layers.3.self_attn.other_proj.weight"


def checkpoint_with(tensors=None, skip_check=False, of=None, engine=None, **config):
    """A case of a changed copy: of the good checkpoint, or of another one beside it."""

    def make(folder, to):
        model = changed(folder.with_name(of) if of else folder, to, tensors, **config)
        return {"model": model} | ({"skip_check": True} if skip_check else {}) | ({"engine": engine} if engine else {})

    return make


def settings(*pretending, **engine):
    """A case of the good checkpoint with other settings of vLLM."""

    def make(folder, to):
        return {"model": folder, "engine": engine} | dict.fromkeys(pretending, True)

    return make


def transferring(connector, **more):
    return {"kv_transfer_config": {"kv_connector": connector, "kv_role": "kv_both"} | more}


def truncated(folder, to):
    file = changed(folder, to) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return {"model": to}


def no_weights(folder, to):
    (changed(folder, to) / "model.safetensors").unlink()
    return {"model": to}


def speculating(method, **settings):
    """A case with speculation by `method`, from a small ordinary model where it takes one."""

    def make(folder, to):
        draft = to / "draft"
        draft.mkdir(parents=True)
        config = json.loads((folder / "config.json").read_text())
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
        (draft / "config.json").write_text(json.dumps(config | settings.pop("config", {})))
        speculation = {"method": method, "model": str(draft), "num_speculative_tokens": 2}
        return {"model": folder, "engine": {"speculative_config": speculation} | settings}

    return make


TENSORS = {
    "drop": (lambda weights: weights.pop(K10), "no tensor", K10),
    "misshape": (lambda weights: weights.update({K10: weights[K10][:-32].clone()}), K10, "[96, 64]", "[128, 64]"),
    "add_unknown": (lambda weights: weights.update({UNKNOWN: weights[K10].clone()}), UNKNOWN),
}
MP = {"distributed_executor_backend": "mp"}
FULL = {"swiftkv_full_depth": True}
EXTRACT = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
STATES = {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}}
MLP = {"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"]}
UNTRIED, NIXL = "not known to work", "NixlConnector"
# What is wrong: how the case for `generate.py` is made, and words of the sentence.
EXPECTED = {
    **{
        f"{name} {when}": (checkpoint_with(change, skip), *words)
        for skip, when in ((False, "in the headers"), (True, "while reading"))
        for name, (change, *words) in TENSORS.items()
    },
    **{
        f"{name} {when}": (checkpoint_with(skip_check=skip, **config), *words)
        for skip, when in ((False, "in the headers"), (True, "while reading"))
        for name, config, *words in (
            ("wrong group size", {"key_value_group_size": 5}, "k_proj_swiftkv", "key_value_group_size 5"),
            ("wrong l", {"num_key_value_layers": 12}, "_swiftkv", "num_key_value_layers 12"),
        )
    },
    "foreign tensor while reading": (
        checkpoint_with(lambda weights: weights.update({FOREIGN: weights[K10].clone()}), True),
        FOREIGN,
        "no place",
    ),
    "truncated": (truncated, "model.safetensors", "damaged or cut short"),
    "no weights": (no_weights, "model.safetensors", "does not exist"),
    "impossible group size": (
        checkpoint_with(key_value_group_size=11),
        "key_value_group_size is 11",
        "between 1 and 10",
    ),
    "the teacher": (checkpoint_with(swiftkv=False), "swiftkv false"),
    "both modes": (
        settings(additional_config=FULL, kv_sharing_fast_prefill=True),
        "--kv-sharing-fast-prefill",
        "swiftkv_full_depth",
    ),
    "no truth value": (
        settings(additional_config={"swiftkv_full_depth": "yes"}),
        "swiftkv_full_depth",
        "'yes'",
        "true or false",
    ),
    "pipeline": (settings(pipeline_parallel_size=2, **MP), "pipeline parallelism", "--tensor-parallel-size"),
    **{
        f"speculation by {method}": (speculating(method), f"{method} speculation", "hidden states", "n-gram")
        for method in ("eagle", "eagle3")
    },
    "speculation by an MLP": (
        speculating("mlp_speculator", config=MLP),
        MLP["architectures"][0],
        "not supported",
    ),  # by vLLM
    "draft model": (speculating("draft_model"), "all prompt tokens through all layers", "swiftkv_full_depth", "n-gram"),
    "draft model of other heads": (
        speculating("draft_model", config={"num_key_value_heads": 2}, additional_config=FULL),
        "2 key/value heads of 32",
        "the model 4 of 32",
    ),
    "extraction of hidden states": (
        settings(speculative_config=EXTRACT | STATES),
        "extract_hidden_states",
        "prompt tokens do not have",
    ),
    "prefill context": (settings(prefill_context_parallel_size=2, **MP), "context parallelism"),
    "decode context": (settings(decode_context_parallel_size=2, tensor_parallel_size=2, **MP), "context parallelism"),
    "dual batch overlap": (settings(enable_dbo=True), "--enable-dbo"),
    "micro-batches": (settings(ubatch_size=2), "--ubatch-size"),
    "pooling": (settings(runner="pooling"), "--runner pooling", "skip layers"),
    "conversion": (settings(convert="embed"), "--convert", "skip layers"),
    "LoRA": (settings(enable_lora=True), "LlamaSwiftKVForCausalLM does not support LoRA"),  # by vLLM itself
    "experts": (
        settings(enable_expert_parallel=True),
        "Number of experts in the model must be greater than 0",
    ),  # so is this
    "other format in a layer": (
        settings(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["12"]),
        "--kv-cache-dtype-skip-layers 12",
    ),
    **{
        f"cache of {kind}": (settings(kv_cache_dtype=kind), f"--kv-cache-dtype {kind}", "share caches", "fp8_e4m3")
        for kind in ("fp8_e5m2", "fp8_per_token_head", "nvfp4")
    },
    "offloading": (settings(kv_offloading_size=1.0, kv_offloading_backend="lmcache"), "LMCacheMPConnector", UNTRIED),
    **{
        name: (settings(**transferring(name)), name, UNTRIED)
        for name in ("LMCacheConnectorV1", "MooncakeConnector", "MultiConnector", "ExampleHiddenStatesConnector")
    },
    "a connector of its own": (
        settings(**transferring(NIXL, kv_connector_module_path="connectors")),
        f"connectors.{NIXL}",
        UNTRIED,
    ),
    "sleep mode": (settings("sleeping_platform", enable_sleep_mode=True), "not been tried with --enable-sleep-mode"),
    "connector and fewer heads": (
        checkpoint_with(swiftkv_num_key_value_heads=1, engine=transferring(NIXL)),
        "swiftkv_num_key_value_heads",
        f"do not support KV connectors ({NIXL})",
    ),
    "windows in some layers": (checkpoint_with(of="windows"), "sliding window in some layers"),
    "more heads": (
        checkpoint_with(swiftkv_num_key_value_heads=8),
        "swiftkv_num_key_value_heads 8",
        "has to divide num_key_value_heads 4",
    ),
    "qwen2 with a head size of its own": (
        checkpoint_with(of="windows", head_dim=16, use_sliding_window=False, layer_types=None),
        "head_dim 16",
        "32",
    ),
    "latent attention": (
        checkpoint_with(of="latent", engine={"max_model_len": 64}),
        "'deepseek_v2' cannot be served",
        "shares no KV cache between layers",
    ),
    # Last: n-grams bring llvmlite, which vLLM's CPU build stumbles over as it starts another engine in the process.
    "drafts before a backend that reads on the host": (
        settings("reads_on_host", speculative_config={"method": "ngram", "num_speculative_tokens": 2}),
        "speculation beside SwiftKV's fast prefill",
        "CPU_ATTN",
    ),
}


@pytest.fixture(scope="module")
def answers(engines, checkpoint, tmp_path_factory):
    folder, new = checkpoint("llama", 10, 2), tmp_path_factory.mktemp("broken")
    windows = checkpoint("qwen2", 10, 2, use_sliding_window=True, sliding_window=48, max_window_layers=10)
    folder.with_name("windows").symlink_to(windows)
    folder.with_name("latent").symlink_to(checkpoint("deepseek_v2", 10, 2))
    cases = [make(folder, new / name.replace(" ", "-")) for name, (make, *_) in EXPECTED.items()]
    return dict(zip(EXPECTED, engines(cases), strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_is_refused_with_its_name_and_reason(answers, name):
    # Where vLLM wraps a configuration's error, the sentence is one line of several.
    lines = answers[name]["error"].splitlines()
    assert any(all(word in line for word in EXPECTED[name][1:]) for line in lines), lines
    assert len(lines) == 1 or "ValidationError" in lines[0]
