"""A tensor that is missing or wrong is named, and heads and scales get to all that read them. No engine runs."""

from copy import deepcopy
from math import prod
from types import SimpleNamespace

import pytest
import torch
from tests.conftest import refused, tiny_teacher
from transformers.core_model_loading import revert_weight_conversion

from swiftkv.models import rewire
from swiftkv.serve.weights import _place, load_weights
from swiftkv.spec import SwiftKVSpec

# Tensors of a linear layer in a checkpoint: those of vLLM's parameters that have to be there, then others.
FORMS = {
    "float8": ["weight", "weight_scale"],
    "compressed-tensors, 4 bits": ["weight_packed", "weight_scale"],
    "AWQ": ["qweight", "qzeros", "scales"],
}
OPTIONAL = {"compressed-tensors, 4 bits": ["weight_shape"], "AWQ": ["g_idx"], "float8": ["input_scale"]}


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def model(request):
    return rewire(tiny_teacher(request.param, num_hidden_layers=4), SwiftKVSpec(4, 1, 2))


@pytest.fixture
def config(model):
    changed = deepcopy(model.config)
    changed.quantization_config = {"quant_method": "any"}
    return changed


def checkpoint(model, form):
    """Names and tensors; a tensor of a quantized layer is a number of its own."""
    unused, made = model.teacher_projection_names(), {}
    for name, tensor in saved(model).items():
        module, _, kind = name.rpartition(".")
        if name in unused:
            continue
        if kind != "weight" or not module.endswith(("_proj", "_proj_swiftkv")):
            made[name] = tensor
            continue
        for stored in FORMS[form]:
            made[f"{module}.{stored}"] = tensor if stored == "weight" else torch.tensor([float(len(made))])
    return made


def saved(model):
    """Experts are saved one by one."""
    return revert_weight_conversion(model, model.state_dict())


class Placed(dict):
    """vLLM's parameters, which remember what is loaded into which part of them."""

    def __init__(self, model, form):
        super().__init__()
        self.loaded = {}
        for name in saved(model):
            module, _, kind = name.rpartition(".")
            linear = kind == "weight" and module.endswith(("_proj", "_proj_swiftkv"))
            for stored in FORMS[form] + OPTIONAL.get(form, []) if linear else [kind]:
                if place := _place(f"{module}.{stored}", SwiftKVSpec.from_config(model.config)):
                    self.add(place[0])

    def add(self, name, shape=(1,), outputs=None):
        """A parameter; `outputs` is its dimension of them."""
        self[name] = parameter = torch.nn.Parameter(torch.full(shape, -1.0), requires_grad=False)
        if outputs is not None:
            parameter.output_dim = outputs
        parameter.weight_loader = lambda parameter, tensor, *part: self.load(name, parameter, tensor, part)

    def load(self, name, parameter, tensor, part):
        self.loaded[name, part] = tensor
        if name.endswith(("q_scale", "k_scale", "v_scale")):
            parameter.data.copy_(tensor)


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_tensor_is_named(model, config, form):
    tensors = checkpoint(model, form)
    layers = [name for name in tensors if name.split(".")[2:3] in (["0"], ["3"])]
    for name in [name for name in layers if ".experts." not in name or ".experts.2." in name]:
        left = {other: tensor for other, tensor in tensors.items() if other != name}
        with refused(f"no tensor {name},"):
            load_weights(config, Placed(model, form), None, left.items())


@pytest.mark.parametrize(
    "name, rows, sentence",
    [
        ("3.self_attn.k_proj_swiftkv", 24, r"shape \[24, 64\], but .* \[32, 64\]"),
        ("2.self_attn.k_proj_swiftkv", 32, "layer 2 has no such projection"),
        ("3.self_attn.x_proj", 32, "has no place for"),
    ],
)
def test_a_tensor_of_another_shape_or_name_is_named(model, name, rows, sentence):
    tensors = saved(model) | {f"model.layers.{name}.weight": torch.ones(rows, 64)}
    with refused(f"{name}.weight.*{sentence}"):
        load_weights(model.config, Placed(model, "float8"), None, tensors.items())


@pytest.mark.parametrize(
    "kind, empty, telling",
    [("bias", [0, 0, 0, 0], [0, 0, 1, 0]), ("g_idx", [0, 0, 1, 1], [0, 1, 1, 0])],  # the groups of inputs, by GPTQ
)
def test_tensors_that_say_nothing_and_the_early_exit_head_are_passed_over(model, config, kind, empty, telling):
    form = "compressed-tensors, 4 bits"
    tensors, name = checkpoint(model, form), f"model.layers.2.self_attn.o_proj.{kind}"
    unserved = {"early_exit_head_swiftkv.weight_packed": torch.ones(1), name: torch.tensor(empty)}
    load_weights(config, Placed(model, form), None, (tensors | unserved).items())
    with refused(name):
        load_weights(config, Placed(model, form), None, [*tensors.items(), (name, torch.tensor(telling))])


@pytest.mark.parametrize("of", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj{}.output_scale"])
def test_readers_of_a_cache_take_the_scales_of_its_owner(model, config, of):
    parameters, layers = Placed(model, "float8"), [f"model.layers.{layer}.self_attn.attn" for layer in range(4)]
    for place in (*layers, "model.caches.owners.0", "model.caches.owners.1"):
        for kind in "qkv":
            parameters.add(f"{place}.{kind}_scale")
    scales = {
        f"model.layers.{layer}.{of.format(kind, '_swiftkv' if layer else '')}": torch.tensor([layer + number])
        for layer in range(4)
        for kind, number in (("q", 0.25), ("k", 0.5), ("v", 0.75))
    }
    tensors = checkpoint(model, "float8") | scales | {"model.layers.1.self_attn.k_proj.output_scale": torch.ones(1)}
    filled = load_weights(config, parameters, None, tensors.items())
    assert {f"{layer}.{kind}_scale" for layer in layers[1:] for kind in "kv"} <= filled
    places = {"q": layers} | dict.fromkeys("kv", [*layers, "model.caches.owners.0", "model.caches.owners.1"])
    found = {kind: [parameters[f"{place}.{kind}_scale"].item() for place in places[kind]] for kind in "qkv"}
    assert found["q"] == [0.25, 1.25, 2.25, 3.25]
    assert found["k"] == [0.5, 1.5, 1.5, 3.5, 1.5, 3.5] and found["v"] == [0.75, 1.75, 1.75, 3.75, 1.75, 3.75]
    # Where the cache is of 16 bits there is no place for them.
    load_weights(config, Placed(model, "float8"), None, tensors.items())


@pytest.mark.parametrize("shape, outputs", [((4, 3), 0), ((3, 4), 1), ((2,), None)], ids=["rows", "columns", "one"])
def test_heads_are_copied_to_all_ranks_that_hold_them(model, config, shape, outputs):
    name, caches = "model.caches.kv_proj_swiftkv.qweight", SimpleNamespace(heads=heads())
    parameters = Placed(model, "AWQ")
    parameters.add(name, outputs=outputs)
    given = torch.arange(prod(shape)).reshape(shape)
    source = "model.layers.3.self_attn.k_proj_swiftkv.qweight"
    load_weights(config, parameters, caches, [(source, given)], complete=False)
    found = parameters.loaded[name, (1,)]
    if outputs is None:
        assert found is given
    else:  # two heads of two numbers, each for two ranks
        assert torch.equal(found, given.index_select(outputs, torch.tensor([0, 1, 0, 1, 2, 3, 2, 3])))


def test_heads_that_share_a_number_cannot_be_copied(model, config):
    parameters = Placed(model, "AWQ")
    parameters.add("model.caches.kv_proj_swiftkv.scales", outputs=0)
    name = "model.layers.3.self_attn.k_proj_swiftkv.scales"
    with refused(f"{name}.*--tensor-parallel-size 2"):
        load_weights(config, parameters, SimpleNamespace(heads=heads()), [(name, torch.ones(1))], complete=False)


def heads():
    """Two key/value heads on four ranks."""
    return SimpleNamespace(total_key_value=2, copies=2)
