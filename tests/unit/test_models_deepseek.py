"""DeepSeek-V2: the equations of latent attention, its checkpoints, its training, and what it is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from score_helpers import SHAPE as SCORED
from score_helpers import SPEC as SCORED_SPEC
from score_helpers import write_chats, write_source
from tests.conftest import LATENT
from tests.unit.distill_helpers import GOLDEN
from tests.unit.test_distill import batch, recipe
from torch.nn.functional import silu
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from pipeline.config.settings import Fidelity
from pipeline.score.fidelity import measure_fidelity
from swiftkv.cost import parameter_count
from swiftkv.distill.step import DistillationStep
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.models import load_base, load_swiftkv, rewire, save_swiftkv
from swiftkv.models.checkpoint import _saved_shapes
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).parents[2]
L = 6
QUERIES = {"plain": None, "latent": 20}  # q_lora_rank
REWIRINGS = [(3, 1), (2, 2), (2, 3), (1, 3), (5, 1)]


@pytest.fixture(params=QUERIES)
def q_lora_rank(request) -> int | None:
    return QUERIES[request.param]


def reference_logits(model, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, vocabulary] straight from the equations, on the weights by name, in float64."""
    w = {name: tensor.double() for name, tensor in model.state_dict().items()}
    config, spec, length = model.config, model.spec, tokens.shape[1]
    rope = config.rope_parameters
    heads, nope, rotary = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
    causal = torch.ones(length, length, dtype=torch.bool).tril()

    # YaRN: slow frequencies are divided by the factor, fast ones kept, those between mixed linearly.
    def turns_at(count):
        return rotary * math.log(rope["original_max_position_embeddings"] / (count * 2 * math.pi)) / (2 * math.log(1e4))

    low, high = max(math.floor(turns_at(32)), 0), min(math.ceil(turns_at(1)), rotary - 1)
    fast = 1 - ((torch.arange(rotary // 2).double() - low) / (high - low)).clamp(0, 1)
    frequency = 1e4 ** (-torch.arange(0, rotary, 2).double() / rotary)
    frequency = fast * frequency + (1 - fast) * frequency / rope["factor"]
    mscale, all_dim = (0.1 * rope[name] * math.log(rope["factor"]) + 1 for name in ("mscale", "mscale_all_dim"))
    angles = torch.arange(length).double()[:, None] * frequency
    scale = all_dim**2 / math.sqrt(nope + rotary)

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w[name + ".weight"]

    def linear(x, name):
        return x @ w[name + ".weight"].T

    def turn(x):
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin())
        return torch.stack(turned, -1).flatten(-2) * (mscale / all_dim)

    def ffn(x, name):
        return linear(silu(linear(x, name + ".gate_proj")) * linear(x, name + ".up_proj"), name + ".down_proj")

    def experts(x, name):
        shares = linear(x, name + ".gate").softmax(-1)
        chosen = shares >= shares.topk(config.num_experts_per_tok, -1).values[..., -1:]
        out = ffn(x, name + ".shared_experts")
        for expert in range(config.n_routed_experts):
            gate, up = (x @ w[name + ".experts.gate_up_proj"][expert].T).chunk(2, -1)
            made = (silu(gate) * up) @ w[name + ".experts.down_proj"][expert].T
            out = out + made * (shares * chosen)[..., expert, None]
        return out

    h = w["model.embed_tokens.weight"][tokens]
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        a = layer + "self_attn."
        upper = i >= spec.num_key_value_layers
        if i == spec.num_key_value_layers:
            s = norm(h, "model.norm_swiftkv")
        x = norm(h, layer + "input_layernorm")
        suffix = "_swiftkv" if upper else ""
        if not upper or i in spec.owners:
            latent = linear(s if upper else x, f"{a}kv_a_proj_with_mqa{suffix}")
            content = linear(norm(latent[..., :-rotary], f"{a}kv_a_layernorm{suffix}"), f"{a}kv_b_proj{suffix}")
            content = content.unflatten(-1, (heads, -1)).transpose(1, 2)
            shared = turn(latent[..., -rotary:])[:, None].expand(-1, heads, -1, -1)
            k, v = torch.cat([content[..., :nope], shared], -1), content[..., nope:]
        if config.q_lora_rank is None:
            q = linear(x, f"{a}q_proj{suffix}")
        else:
            q = linear(norm(linear(x, f"{a}q_a_proj{suffix}"), f"{a}q_a_layernorm{suffix}"), f"{a}q_b_proj{suffix}")
        q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
        q = torch.cat([q[..., :nope], turn(q[..., nope:])], -1)
        attended = (q @ k.mT * scale).masked_fill(~causal, -torch.inf).softmax(-1) @ v
        h = h + linear(attended.transpose(1, 2).flatten(2), a + "o_proj")
        x = norm(h, layer + "post_attention_layernorm")
        h = h + (ffn if i < config.first_k_dense_replace else experts)(x, layer + "mlp")
    return norm(h, "model.norm") @ w["lm_head.weight"].T


@pytest.mark.parametrize(("layers", "group"), REWIRINGS)
@torch.no_grad()
def test_equations(layers, group, q_lora_rank, tiny_swiftkv, tokens):
    model = tiny_swiftkv("deepseek_v2", layers, group, q_lora_rank=q_lora_rank, rms_norm_eps=1e-6)
    torch.testing.assert_close(model(tokens).logits.double(), reference_logits(model, tokens), atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_queries_with_a_latent_of_their_own(dtype, tiny_teacher, tokens):
    """As the shared tests ask of the published models, which have none: bit-equal at l = L, L - 1 and as teacher."""
    teacher = tiny_teacher("deepseek_v2", dtype, q_lora_rank=20)
    expected = teacher(tokens).logits
    for layers in (L, L - 1):
        assert torch.equal(rewire(teacher, SwiftKVSpec(L, layers))(tokens).logits, expected)
    model = rewire(teacher, SwiftKVSpec(L, 2, 3))
    model.config.swiftkv = False
    assert torch.equal(model(tokens).logits, expected)


@torch.no_grad()
def test_the_cache_keeps_one_latent_a_group(tiny_swiftkv, tokens):
    model = tiny_swiftkv("deepseek_v2", 2, 3)
    cache = DynamicCache(config=model.config)
    model(tokens, past_key_values=cache, use_cache=True)
    kept = {index: layer for index, layer in enumerate(cache.layers) if layer.get_seq_length()}
    assert list(kept) == [0, 1, 2, 5]
    for layer in kept.values():
        assert layer.keys.shape == (2, 1, 24, LATENT["kv_lora_rank"])
        assert layer.values.shape == (2, 1, 24, LATENT["qk_rope_head_dim"])


@pytest.mark.parametrize("group", [1, 3, 4])
def test_start_values(group, q_lora_rank, tiny_teacher):
    teacher = tiny_teacher("deepseek_v2", q_lora_rank=q_lora_rank)
    original, added = teacher.state_dict(), rewire(teacher, SwiftKVSpec(L, 2, group)).swiftkv_parameters()
    queries = ("q_proj",) if q_lora_rank is None else ("q_a_proj", "q_a_layernorm", "q_b_proj")
    expected = {"model.norm_swiftkv.weight": original["model.layers.2.input_layernorm.weight"]}
    for layer in range(2, L):
        place = "model.layers.{}.self_attn.{}.weight"
        for name in queries:
            expected[place.format(layer, f"{name}_swiftkv")] = original[place.format(layer, name)]
        if (layer - 2) % group == 0:
            members = range(layer, min(layer + group, L))
            for name in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"):
                mean = sum(original[place.format(member, name)] for member in members) / len(members)
                expected[place.format(layer, f"{name}_swiftkv")] = mean
    assert added.keys() == expected.keys()
    for name, value in added.items():
        torch.testing.assert_close(value.detach(), expected[name], atol=1e-6, rtol=0)


def test_other_head_counts_are_refused(tiny_teacher):
    with pytest.raises(UserError, match="latent attention has no key/value heads"):
        rewire(tiny_teacher("deepseek_v2"), SwiftKVSpec(L, 3, 1, 4))


# config.json of DeepSeek-V2-Lite-Chat, all fields and their spelling, in a small size.
HUB_CONFIG = json.loads(Path(__file__).with_name("configs").joinpath("deepseek-v2-lite-chat.json").read_text())
PROJECTIONS = {"q_proj": (96, 64), "kv_a_proj_with_mqa": (32, 64), "kv_a_layernorm": (24,), "kv_b_proj": (112, 24)}


def write_hub(folder: Path, swiftkv: bool = False, teacher: bool = True) -> Path:
    """A checkpoint of 4 layers with the published names, experts one by one; with SwiftKV from layer 2, in pairs."""
    shapes = {"model.embed_tokens.weight": (128, 64), "lm_head.weight": (128, 64), "model.norm.weight": (64,)}
    if swiftkv:
        shapes["model.norm_swiftkv.weight"] = (64,)
    for i in range(4):
        layer = f"model.layers.{i}."
        shapes |= {layer + f"{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        shapes[layer + "self_attn.o_proj.weight"] = (64, 48)
        feeds = {"": 96} if i == 0 else {"shared_experts.": 64, **{f"experts.{expert}.": 32 for expert in range(4)}}
        for feed, width in feeds.items():
            shapes |= {f"{layer}mlp.{feed}{name}_proj.weight": (width, 64) for name in ("gate", "up")}
            shapes[f"{layer}mlp.{feed}down_proj.weight"] = (64, width)
        if i > 0:
            shapes[layer + "mlp.gate.weight"] = (4, 64)
        for name, shape in PROJECTIONS.items():
            if i < 2 or teacher:
                shapes[f"{layer}self_attn.{name}.weight"] = shape
            if swiftkv and i >= 2 and (name == "q_proj" or i == 2):
                shapes[f"{layer}self_attn.{name}_swiftkv.weight"] = shape
    generator = torch.Generator().manual_seed(4)
    tensors = {name: torch.randn(shape, generator=generator) / 8 + (len(shape) == 1) for name, shape in shapes.items()}
    config = HUB_CONFIG
    if swiftkv:
        config = {key: value for key, value in config.items() if key != "auto_map"} | {
            "model_type": "deepseek_v2_swiftkv",
            "architectures": ["DeepseekV2SwiftKVForCausalLM"],
            "swiftkv": True,
            "num_key_value_layers": 2,
            "key_value_group_size": 2,
        }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
def test_the_hub_s_checkpoint_needs_no_remote_code(tmp_path, tokens):
    model = load_base(write_hub(tmp_path / "hub"), torch.float32)
    assert type(model).__module__ == "transformers.models.deepseek_v2.modeling_deepseek_v2"
    stored = load_file(tmp_path / "hub/model.safetensors")
    experts = model.model.layers[2].mlp.experts
    assert torch.equal(experts.down_proj[3], stored["model.layers.2.mlp.experts.3.down_proj.weight"])
    assert torch.equal(experts.gate_up_proj[1, 32:], stored["model.layers.2.mlp.experts.1.up_proj.weight"])
    assert torch.equal(rewire(model, SwiftKVSpec(4, 4))(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("teacher", [True, False])
@torch.no_grad()
def test_published_format_round_trip(teacher, tmp_path, tokens):
    model = load_swiftkv(write_hub(tmp_path / "published", True, teacher), torch.float32)
    assert model.model.student_only != teacher
    save_swiftkv(model, tmp_path / "ours")
    ours, published = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "published"))
    assert ours.keys() == published.keys()
    assert all(torch.equal(ours[name], published[name]) for name in ours)
    assert torch.equal(load_swiftkv(tmp_path / "ours", torch.float32)(tokens).logits, model(tokens).logits)
    if not teacher:
        model.config.swiftkv = False
        with pytest.raises(UserError, match="teacher's projections .*kv_a_proj_with_mqa.* of layers 2 and above"):
            model(tokens)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("model.layers.3.mlp.experts.2.up_proj.weight", "has no tensor model.layers.3.mlp.experts.2.up_proj.weight"),
        ("model.layers.2.self_attn.kv_b_proj_swiftkv.weight", "has no tensor model.layers.2.self_attn.kv_b_proj_swif"),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", "has no tensor model.layers.3.self_attn.kv_a_layernorm"),
    ],
)
def test_a_lost_tensor_is_named(lost, said, tmp_path):
    folder = write_hub(tmp_path / "published", swiftkv=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=said):
        load_swiftkv(folder)


def test_the_real_model_s_size_and_scaling():
    """Its 15.7 billion parameters, and YaRN as its own code has it: angles unscaled, scores times mscale squared."""
    dimensions = read_json(ROOT / "resources/architectures/deepseek-v2-lite.json")["config"]
    sizes = {key: dimensions[key] for key in dimensions if key in HUB_CONFIG}
    config = AutoConfig.for_model(**HUB_CONFIG | sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = _saved_shapes(model)
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (5291, 15_706_484_224)
    assert parameter_count(dimensions) == 15_706_484_224
    assert model.model.rotary_emb.attention_scaling == 1.0
    assert model.model.layers[0].self_attn.scaling == pytest.approx((0.0707 * math.log(40) + 1) ** 2 / 192**0.5)


# Training


def test_losses_are_the_golden_ones(tiny_teacher):
    """Five steps of AdamW, within 1e-4 of those recorded in tests/golden."""
    step = DistillationStep(tiny_teacher("deepseek_v2"), SwiftKVSpec(L, 2, 3), recipe())
    optimizer = torch.optim.AdamW([p for p in step.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss, _ = step(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(read_json(GOLDEN / "deepseek_losses.json")["losses"], rel=1e-4)


def test_fidelity_of_a_trained_student(tiny_teacher, tiny_swiftkv, tmp_path):
    source = write_source(tiny_teacher("deepseek_v2", **SCORED), tmp_path)
    student = tiny_swiftkv("deepseek_v2", 3, 2, **SCORED)
    save_swiftkv(student, tmp_path / "student")
    found = {}
    for variant, folder, spec in (("baseline", None, None), ("swiftkv", tmp_path / "student", SCORED_SPEC)):
        for kv_cache in ("auto", "fp8"):
            heldout = write_chats(tmp_path / "chats.jsonl")
            record = measure_fidelity(
                source,
                folder,
                variant,
                spec,
                kv_cache,
                heldout,
                Fidelity(documents=3, max_length=40, seed=7),
                tmp_path / "out.json",
            )
            found[variant, kv_cache] = record["result"]["kl"]["value"]
    assert found["baseline", "auto"] == 0 < found["baseline", "fp8"] < found["swiftkv", "auto"]
