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


@case("eagle", "EAGLE", "n-gram")
def eagle(folder, to):
    draft = to / "eagle"
    draft.mkdir(parents=True)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    (draft / "config.json").write_text(json.dumps(config))
    speculation = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    return {"model": folder, "engine": {"speculative_config": speculation}}


@case("windows in some layers", "sliding window in some layers")
def some_windows(folder, to):
    return {"model": changed(folder.with_name("windows"), to)}


@case("other head count", "swiftkv_num_key_value_heads", "cannot be served")
def other_heads(folder, to):
    return {"model": changed(folder, to, swiftkv_num_key_value_heads=1)}


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
