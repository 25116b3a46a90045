"""Models with FP8 weights (W8A8): loaded, run, rewired, saved; held against plain arithmetic on the same numbers."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import as_trained, randomise_biases, tiny_teacher
from tests.quantized import GROUP, NUMBERS, QUANTIZATION, quantize

from swiftkv.errors import UserError
from swiftkv.models import load_any, load_base, load_sharing, load_swiftkv, rewire, save_swiftkv
from swiftkv.quantize.linear import Float8Linear, dense_weight, float8_names, quantize_rows
from swiftkv.spec import SwiftKVSpec

FP8 = torch.float8_e4m3fn
SPEC = SwiftKVSpec(6, 3, 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The checkpoint of a teacher, its FP8 form, and that form's numbers as an ordinary checkpoint."""
    folder = tmp_path_factory.mktemp("fp8")
    teacher = tiny_teacher("qwen2")
    randomise_biases(teacher)
    teacher.save_pretrained(folder / "plain")
    quantize(folder / "plain", folder / "fp8", folder / "rounded")
    return folder


@pytest.fixture(scope="module")
def student_folder(folders):
    """A SwiftKV checkpoint saved from the FP8 teacher, with new projections away from their start."""
    save_swiftkv(as_trained(rewire(load_base(folders / "fp8", torch.float32), SPEC)), folders / "student")
    return folders / "student"


def rounded_inputs(model):
    """Make every linear layer but the head round its input by token to FP8, in plain arithmetic."""

    def hook(_, inputs):
        scale = inputs[0].abs().amax(-1, keepdim=True) / 448
        return ((inputs[0] / scale).to(FP8).float() * scale,)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(hook)
    return model


@pytest.mark.parametrize(("dtype", "biased"), [(torch.float32, True), (torch.bfloat16, False)])
def test_one_layer_is_the_product_of_the_rounded_numbers(dtype, biased):
    generator = torch.Generator().manual_seed(0)
    weight, states = torch.randn(48, 64, generator=generator), torch.randn(2, 5, 64, generator=generator).to(dtype)
    states[1, 2] = 0
    layer = Float8Linear(64, 48, biased, torch.device("cpu"), dtype)
    codes, scales = quantize_rows(weight)
    layer.weight.data, layer.weight_scale.data = codes.view(torch.bfloat16), scales.view(torch.bfloat16)
    bias = torch.randn(48, generator=generator).to(dtype) if biased else torch.zeros(48)
    if biased:
        layer.bias.data = bias
    amax = (states.float().abs().amax(-1, keepdim=True) / 448).clamp(min=1e-30)
    rounded = (states.float() / amax).to(FP8).double() * amax.double()
    expected = rounded @ (codes.double() * scales.double()).T + bias.double()
    states.requires_grad_()
    output = layer(states)
    # One rounding of the output to its own dtype, and of the bias' sum: the relative error of one unit.
    bound = expected.abs() * torch.finfo(dtype).eps + 1e-4 * torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    assert output.dtype == dtype and bool(((output.double() - expected).abs() <= bound.clamp(min=1e-5)).all())
    gradient = torch.randn(output.shape, generator=generator).to(dtype)
    output.backward(gradient)
    torch.testing.assert_close(states.grad, gradient @ dense_weight(layer, dtype), rtol=0, atol=0)


def test_weights_stay_in_eight_bits(folders):
    model = load_base(folders / "fp8", torch.float32)
    stored, names = load_file(folders / "fp8/model.safetensors"), float8_names(model)
    assert len(names) == 7 * 6 and "lm_head" not in names
    for name in names:
        layer = model.get_submodule(name)
        assert layer.weight.nbytes == stored[f"{name}.weight"].nbytes == layer.in_features * layer.out_features
        assert torch.equal(layer.weight.view(FP8).float(), stored[f"{name}.weight"].float())
        assert torch.equal(dense_weight(layer), stored[f"{name}.weight"].float() * stored[f"{name}.weight_scale"])
    with pytest.raises(TypeError, match="cannot be cast"):
        model.to(torch.float32)


@torch.no_grad()
def test_the_model_equals_plain_arithmetic_on_the_rounded_numbers(folders, tokens):
    eight = load_base(folders / "fp8", torch.float32)(tokens).logits
    same = rounded_inputs(load_base(folders / "rounded", torch.float32))(tokens).logits
    # Sums in another order turn a few roundings the other way; one is 1/16 of a value.
    assert (eight - same).abs().median() < 1e-5 and (eight - same).abs().mean() < 0.01
    weights_only = load_base(folders / "rounded", torch.float32)(tokens).logits
    assert (eight - weights_only).abs().mean() > 10 * (eight - same).abs().mean()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_l_equal_to_all_layers_and_the_teacher_within_are_the_teacher(folders, tokens, dtype):
    teacher = load_base(folders / "fp8", dtype)
    expected = teacher(tokens).logits
    assert torch.equal(rewire(teacher, SwiftKVSpec(6, 6))(tokens).logits, expected)
    model = rewire(teacher, SPEC)
    assert not torch.equal(model(tokens).logits, expected)
    model.config.swiftkv = False
    assert torch.equal(model(tokens).logits, expected)


def test_new_projections_start_as_what_the_fp8_ones_stand_for(folders):
    teacher = load_base(folders / "fp8", torch.float32)
    model, stored = rewire(teacher, SPEC), load_file(folders / "rounded/model.safetensors")
    names = [f"model.layers.{layer}.self_attn.k_proj.weight" for layer in (3, 4)]
    expected = (stored[names[0]] + stored[names[1]]) / 2
    torch.testing.assert_close(model.model.layers[3].self_attn.k_proj_swiftkv.weight, expected, rtol=0, atol=1e-6)
    query = model.model.layers[5].self_attn.q_proj_swiftkv.weight
    assert torch.equal(query, stored["model.layers.5.self_attn.q_proj.weight"])
    assert {p.dtype for p in model.swiftkv_parameters().values()} == {torch.float32}


@torch.no_grad()
def test_save_and_load_come_back_to_the_same_bits(student_folder, tokens, tmp_path):
    model = load_any(student_folder, torch.float32)
    save_swiftkv(model, tmp_path / "again")
    save_swiftkv(model, tmp_path / "student", keep_teacher_qkv=False)
    first, again, student = (
        load_file(folder / "model.safetensors") for folder in (student_folder, tmp_path / "again", tmp_path / "student")
    )
    assert first.keys() == again.keys() > student.keys()
    assert all(torch.equal(tensor.float(), again[name].float()) for name, tensor in first.items())
    assert {name.split(".")[4] for name in first.keys() - student.keys()} == {"q_proj", "k_proj", "v_proj"}
    alone = load_swiftkv(tmp_path / "student", torch.float32)
    assert alone.model.student_only and torch.equal(alone(tokens).logits, model(tokens).logits)


@torch.no_grad()
@pytest.mark.parametrize("base", ["fp8", "plain"])
def test_loading_on_top_of_the_teacher_is_loading(folders, student_folder, tokens, base):
    teacher = load_base(folders / base, torch.float32)
    shared = load_sharing(student_folder, teacher)
    assert torch.equal(shared(tokens).logits, load_swiftkv(student_folder, torch.float32)(tokens).logits)
    own = {id(parameter) for parameter in teacher.parameters()}
    common = [name for name, parameter in shared.named_parameters() if id(parameter) in own]
    # Of an FP8 teacher all but the new parameters; of a 16-bit one the embeddings and norms only.
    linear = [name for name in common if "_proj." in name and "bias" not in name]
    assert len(linear) == (2 * 7 * 6 if base == "fp8" else 0) and "model.norm.weight" in common


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        ({"quant_method": "fbgemm_fp8"}, "quant_method is 'fbgemm_fp8'"),
        ({"format": "pack-quantized"}, "format is 'pack-quantized'"),
        ({"ignore": ["lm_head", "model.layers.0.mlp.up_proj"]}, "ignore"),
        ({"config_groups": {"group_0": GROUP | {"weights": NUMBERS | {"strategy": "tensor"}}}}, "weights"),
    ],
)
def test_another_scheme_is_refused(folders, tmp_path, scheme, sentence):
    config = json.loads((folders / "fp8/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION | scheme}))
    (tmp_path / "model.safetensors").symlink_to(folders / "fp8/model.safetensors")
    with pytest.raises(UserError, match=sentence):
        load_base(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("weight_scale", lambda _: None, "no tensor model.layers.2.mlp.up_proj.weight_scale"),
        ("weight_scale", lambda _: torch.ones(1, 1), r"weight_scale has shape \[1, 1\]"),
        ("weight", torch.Tensor.bfloat16, "up_proj.weight is torch.bfloat16"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(folders, tmp_path, name, change, sentence):
    tensors = load_file(folders / "fp8/model.safetensors")
    changed = change(tensors.pop(f"model.layers.2.mlp.up_proj.{name}"))
    more = {} if changed is None else {f"model.layers.2.mlp.up_proj.{name}": changed}
    save_file(tensors | more, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folders / "fp8/config.json").read_text())
    with pytest.raises(UserError, match=sentence):
        load_base(tmp_path)


def test_too_few_gpus_are_one_sentence(folders, full_gpus):
    with pytest.raises(UserError, match="does not fit into the memory of the GPUs"):
        load_base(folders / "fp8", device_map="auto")
