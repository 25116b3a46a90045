"""FP8 weights (W8A8), held against plain arithmetic on the same numbers, and numbers of the per-token FP8 KV cache."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import as_trained, in_pieces, randomise_biases, refused, tiny_swiftkv, tiny_teacher
from tests.quantized import GROUP, NUMBERS, QUANTIZATION, quantize
from torch.testing import assert_close

from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, load_sharing, load_swiftkv, rewire, save_model
from swiftkv.quantize.kv_cache import new_cache, round_trip
from swiftkv.quantize.kv_cache import quantize as quantize_states
from swiftkv.quantize.linear import Float8Linear, dense_weight
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
    save_model(as_trained(rewire(load_base(folders / "fp8", torch.float32), SPEC)), folders / "student")
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_layer_is_the_product_of_the_rounded_numbers(dtype):
    generator = torch.Generator().manual_seed(0)
    weight, states = torch.randn(48, 64, generator=generator), torch.randn(2, 5, 64, generator=generator).to(dtype)
    states[1, 2] = 0
    layer = Float8Linear(64, 48, True, torch.device("cpu"), dtype)
    codes, scales = quantize_states(weight, (1,))
    layer.weight.data, layer.weight_scale.data = codes.view(torch.bfloat16), scales.view(torch.bfloat16)
    layer.bias.data = bias = torch.randn(48, generator=generator).to(dtype)
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
    assert_close(states.grad, gradient @ dense_weight(layer, dtype), rtol=0, atol=0)


@torch.no_grad()
def test_the_model_equals_plain_arithmetic_on_the_rounded_numbers(folders, tokens):
    model = load_base(folders / "fp8", torch.float32)
    eight = model(tokens).logits
    same = rounded_inputs(load_base(folders / "rounded", torch.float32))(tokens).logits
    # Sums in another order turn a few roundings the other way; one is 1/16 of a value.
    assert (eight - same).abs().median() < 1e-5 and (eight - same).abs().mean() < 0.01
    weights_only = load_base(folders / "rounded", torch.float32)(tokens).logits
    assert (eight - weights_only).abs().mean() > 10 * (eight - same).abs().mean()
    with pytest.raises(TypeError, match="cannot be cast"):
        model.to(torch.float32)


def test_new_projections_start_as_what_the_fp8_ones_stand_for_and_are_saved_rounded(folders, student_folder):
    teacher = load_base(folders / "fp8", torch.float32)
    model, stored = rewire(teacher, SPEC), load_file(folders / "rounded/model.safetensors")
    names = [f"model.layers.{layer}.self_attn.k_proj.weight" for layer in (3, 4)]
    expected = (stored[names[0]] + stored[names[1]]) / 2
    assert_close(model.model.layers[3].self_attn.k_proj_swiftkv.weight, expected, rtol=0, atol=1e-6)
    query = model.model.layers[5].self_attn.q_proj_swiftkv.weight
    assert torch.equal(query, stored["model.layers.5.self_attn.q_proj.weight"])
    trained = as_trained(model).swiftkv_parameters()
    assert {p.dtype for p in trained.values()} == {torch.float32}
    saved = load_file(student_folder / "model.safetensors")
    for name in (name for name in trained if f"{name}_scale" in saved):
        found = saved[name].float() * saved[f"{name}_scale"]
        assert_close(found, trained[name].detach(), rtol=2**-4, atol=1e-3)
    assert sum(f"{name}_scale" in saved for name in trained) == 7


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
    "scheme, tensors, sentence",
    [
        ({"quant_method": "fbgemm_fp8"}, {}, "quant_method is 'fbgemm_fp8'"),
        ({"format": "pack-quantized"}, {}, "format is 'pack-quantized'"),
        ({"ignore": ["lm_head", "model.layers.0.mlp.up_proj"]}, {}, "ignore"),
        ({"config_groups": {"group_0": GROUP | {"weights": NUMBERS | {"strategy": "tensor"}}}}, {}, "weights"),
        ({}, {"weight_scale": None}, "no tensor model.layers.2.mlp.up_proj.weight_scale"),
        ({}, {"weight_scale": torch.ones(1, 1)}, r"weight_scale has shape \[1, 1\]"),
        ({}, {"weight": torch.ones(96, 64).bfloat16()}, "up_proj.weight is torch.bfloat16"),
    ],
)
def test_another_scheme_or_tensor_is_refused(folders, tmp_path, scheme, tensors, sentence):
    config = read_json(folders / "fp8/config.json")
    write_json(tmp_path / "config.json", config | {"quantization_config": QUANTIZATION | scheme})
    changed = {f"model.layers.2.mlp.up_proj.{name}": tensor for name, tensor in tensors.items()}
    weights = load_file(folders / "fp8/model.safetensors") | changed
    save_file({name: weight for name, weight in weights.items() if weight is not None}, tmp_path / "model.safetensors")
    with refused(sentence):
        load_base(tmp_path)


def states(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-3, 2, 7)[:, None]  # tokens of very different size
    return (torch.randn(2, 3, 7, 16, generator=generator) * spread).to(dtype)


def test_values_are_fp8_with_one_scale_a_token_over_all_heads_and_finite():
    values, scale = quantize_states(states(), (1, 3))
    assert values.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    assert values.shape == (2, 3, 7, 16) and scale.shape == (2, 1, 7, 1)
    assert (values.float().abs().amax(dim=(1, 3)) == 448).all()
    assert torch.equal(round_trip(states()), values.float() * scale)
    exact = torch.zeros(1, 2, 3, 4)
    exact[0, 0, 1, 0] = 1e-42
    back = round_trip(exact)
    assert back.isfinite().all()
    assert torch.equal(back[:, :, [0, 2]], torch.zeros(1, 2, 2, 4))


def test_decoding_equals_the_full_forward(architecture, tokens):
    for model in tiny_teacher(architecture), tiny_swiftkv(architecture), tiny_swiftkv(architecture, 2, 3, 2):
        model.double()  # float32 sums in another order would tip a few values to the next FP8 number
        model.set_experts_implementation("eager")  # torch's grouped product has no float64

        def logits(kv_cache, sizes, model=model):
            return in_pieces(model, tokens, sizes, new_cache(kv_cache, model.config))

        full = logits("fp8", 24)
        assert not torch.allclose(full, logits("auto", 24), rtol=1e-3)
        bound = 1e-5 if architecture == "deepseek_v2" else 1e-6  # its RoPE and router stay in float32
        assert_close(logits("fp8", (7, 9, *[1] * 8)), full, rtol=bound, atol=bound)
