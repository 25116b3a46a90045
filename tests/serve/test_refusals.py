"""What cannot be served is refused with one sentence that names it, before and while weights are read."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

EXPECTED = {}  # name: words of the sentence


def case(name, *words):
    """Register a function (good folder, folder to make) -> case for `generate.py`, and what the error must say."""

    def add(make):
        EXPECTED[name] = (make, words)
        return make

    return add


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


def drop(weights):
    del weights[K10]


def misshape(weights):
    weights[K10] = weights[K10][:-32].clone()


def add_unknown(weights):
    weights[UNKNOWN] = weights[K10].clone()


def add_foreign(weights):
    weights[FOREIGN] = weights[K10].clone()


for skip_check, when in ((False, "in the headers"), (True, "while reading")):
    for change, words in (
        (drop, ("no tensor", K10)),
        (misshape, (K10, "[96, 64]", "[128, 64]")),
        (add_unknown, (UNKNOWN,)),
    ):

        @case(f"{change.__name__} {when}", *words)
        def weights_case(folder, to, change=change, skip_check=skip_check):
            return {"model": changed(folder, to, change), "skip_check": skip_check}

    @case(f"wrong group size {when}", "k_proj_swiftkv", "key_value_group_size 5")
    def group_case(folder, to, skip_check=skip_check):
        return {"model": changed(folder, to, key_value_group_size=5), "skip_check": skip_check}

    @case(f"wrong l {when}", "_swiftkv", "num_key_value_layers 12")
    def layers_case(folder, to, skip_check=skip_check):
        return {"model": changed(folder, to, num_key_value_layers=12), "skip_check": skip_check}


@case("foreign tensor while reading", FOREIGN, "no place")
def foreign(folder, to):
    return {"model": changed(folder, to, add_foreign), "skip_check": True}


@case("truncated", "model.safetensors", "damaged or cut short")
def truncated(folder, to):
    file = changed(folder, to) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return {"model": to}


@case("no weights", "model.safetensors", "does not exist")
def no_weights(folder, to):
    (changed(folder, to) / "model.safetensors").unlink()
    return {"model": to}


@case("impossible group size", "key_value_group_size is 11", "between 1 and 10")
def impossible(folder, to):
    return {"model": changed(folder, to, key_value_group_size=11)}


@case("the teacher", "swiftkv false")
def teacher(folder, to):
    return {"model": changed(folder, to, swiftkv=False)}


@case("both modes", "--kv-sharing-fast-prefill", "swiftkv_full_depth")
def both(folder, to):
    engine = {"additional_config": {"swiftkv_full_depth": True}, "kv_sharing_fast_prefill": True}
    return {"model": folder, "engine": engine}


@case("no truth value", "swiftkv_full_depth", "'yes'", "true or false")
def no_truth_value(folder, to):
    return {"model": folder, "engine": {"additional_config": {"swiftkv_full_depth": "yes"}}}


@case("pipeline", "pipeline parallelism", "--tensor-parallel-size")
def pipeline(folder, to):
    return {"model": folder, "engine": {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}}


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


STATES = {"eagle_aux_hidden_state_layer_ids": [1, 2]}
for method, words in {
    "eagle": "eagle speculation",
    "eagle3": "eagle3 speculation",
    "medusa": "medusa speculation",
    "custom_class": "custom_class speculation",
}.items():
    case(f"speculation by {method}", words, "hidden states", "n-gram")(speculating(method))
case("draft model", "all prompt tokens through all layers", "swiftkv_full_depth", "n-gram")(speculating("draft_model"))
case("draft model of other heads", "2 key/value heads of 32", "the model 4 of 32")(
    speculating("draft_model", config={"num_key_value_heads": 2}, additional_config={"swiftkv_full_depth": True})
)


@case("extraction of hidden states", "extract_hidden_states", "prompt tokens do not have")
def extraction(folder, to):
    speculation = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    return {
        "model": folder,
        "engine": {"speculative_config": speculation | {"draft_model_config": {"hf_config": STATES}}},
    }


OWN = {"kv_connector_module_path": "connectors"}
for engine, *words in (
    ({"prefill_context_parallel_size": 2, "distributed_executor_backend": "mp"}, "context parallelism"),
    (
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        "context parallelism",
    ),
    ({"enable_dbo": True}, "--enable-dbo"),
    ({"ubatch_size": 2}, "--ubatch-size"),
    ({"runner": "pooling"}, "--runner pooling", "skip layers"),
    ({"convert": "embed"}, "--convert", "skip layers"),
    ({"enable_lora": True}, "LlamaSwiftKVForCausalLM does not support LoRA"),  # by vLLM itself
    ({"enable_expert_parallel": True}, "Number of experts in the model must be greater than 0"),  # so is this
    ({"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["12"]}, "--kv-cache-dtype-skip-layers 12"),
    ({"kv_offloading_size": 1.0, "kv_offloading_backend": "lmcache"}, "LMCacheMPConnector", "not known to work"),
    ({"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}, "LMCacheConnectorV1", "not known to work"),
    ({"kv_transfer_config": {"kv_connector": "MooncakeConnector"}}, "MooncakeConnector", "not known to work"),
    ({"kv_transfer_config": {"kv_connector": "MultiConnector"}}, "MultiConnector", "not known to work"),
    ({"kv_transfer_config": {"kv_connector": "NixlConnector"} | OWN}, "connectors.NixlConnector", "not known to work"),
    (
        {"kv_transfer_config": {"kv_connector": "ExampleHiddenStatesConnector"}},
        "ExampleHiddenStatesConnector",
        "not known to work",
    ),
):

    @case(" ".join([*engine, *words]), *words)
    def settings_case(folder, to, engine=engine):
        if "kv_transfer_config" in engine:
            engine = {"kv_transfer_config": engine["kv_transfer_config"] | {"kv_role": "kv_both"}}
        return {"model": folder, "engine": engine}


@case("sleep mode", "not been tried with --enable-sleep-mode")
def sleep(folder, to):
    return {"model": folder, "engine": {"enable_sleep_mode": True}, "sleeping_platform": True}


@case("connector and fewer heads", "swiftkv_num_key_value_heads", "do not support KV connectors (NixlConnector)")
def fewer_heads(folder, to):
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    return {"model": changed(folder, to, swiftkv_num_key_value_heads=1), "engine": {"kv_transfer_config": transfer}}


@case("windows in some layers", "sliding window in some layers")
def some_windows(folder, to):
    return {"model": changed(folder.with_name("windows"), to)}


@case("more heads", "swiftkv_num_key_value_heads 8", "has to divide num_key_value_heads 4")
def more_heads(folder, to):
    return {"model": changed(folder, to, swiftkv_num_key_value_heads=8)}


@case("qwen2 with a head size of its own", "head_dim 16", "32")
def head_size(folder, to):
    return {"model": changed(folder.with_name("windows"), to, head_dim=16, use_sliding_window=False, layer_types=None)}


@case("latent attention", "'deepseek_v2' cannot be served", "shares no KV cache between layers")
def latent(folder, to):
    return {"model": changed(folder.with_name("latent"), to), "engine": {"max_model_len": 64}}


@pytest.fixture(scope="module")
def answers(engines, checkpoint, tmp_path_factory):
    folder, new = checkpoint("llama", 10, 2), tmp_path_factory.mktemp("broken")
    windows = checkpoint("qwen2", 10, 2, use_sliding_window=True, sliding_window=48, max_window_layers=10)
    folder.with_name("windows").symlink_to(windows)
    folder.with_name("latent").symlink_to(checkpoint("deepseek_v2", 10, 2))
    cases = [make(folder, new / name.replace(" ", "-")) for name, (make, _) in EXPECTED.items()]
    return dict(zip(EXPECTED, engines(cases), strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_is_refused_with_its_name_and_reason(answers, name):
    # Where vLLM wraps a configuration's error, the sentence is one line of several.
    lines = answers[name]["error"].splitlines()
    assert any(all(word in line for word in EXPECTED[name][1]) for line in lines), lines
    assert len(lines) == 1 or "ValidationError" in lines[0]
