"""Per-token FP8 KV cache (Sec. 5.3)."""

from __future__ import annotations

import torch

from swiftkv.quantize.kv_cache import Fp8Cache, new_cache, quantize, round_trip


def states(dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.logspace(-3, 2, 7)[:, None]  # tokens of very different size
    return (torch.randn(2, 3, 7, 16, generator=generator) * spread).to(dtype)


def test_values_are_fp8_with_one_scale_a_token_over_all_heads():
    values, scale = quantize(states(), (1, 3))
    assert values.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    assert values.shape == (2, 3, 7, 16) and scale.shape == (2, 1, 7, 1)
    assert torch.equal(scale[:, 0, :, 0], states().abs().amax(dim=(1, 3)) / 448)
    assert (values.float().abs().amax(dim=(1, 3)) == 448).all()
    assert torch.equal(round_trip(states()), values.float() * scale)


def test_zeros_and_denormals_stay_finite():
    exact = torch.zeros(1, 2, 3, 4)
    exact[0, 0, 1, 0] = 1e-42
    back = round_trip(exact)
    assert back.isfinite().all()
    assert torch.equal(back[:, :, [0, 2]], torch.zeros(1, 2, 2, 4))


def test_cache_returns_and_keeps_what_attention_reads_back():
    cache, key, value = Fp8Cache(), states(), states(seed=1)
    returned = cache.update(key, value, 0)
    assert torch.equal(returned[0], round_trip(key))
    assert torch.equal(returned[1], round_trip(value))
    longer, _ = cache.update(key[:, :, :1], value[:, :, :1], 0)
    assert torch.equal(longer, torch.cat([round_trip(key), round_trip(key[:, :, :1])], dim=2))


def logits(model, tokens, kv_cache: str, pieces: tuple[int, ...]) -> torch.Tensor:
    cache = new_cache(kv_cache, model.config)
    with torch.no_grad():
        return torch.cat(
            [model(part, past_key_values=cache, use_cache=True).logits for part in tokens.split(pieces, dim=1)], dim=1
        )


def models(tiny_teacher, tiny_swiftkv, architecture):
    return [tiny_teacher(architecture), tiny_swiftkv(architecture), tiny_swiftkv(architecture, 2, 3, 2)]


def test_effect_on_a_model_is_there_and_small(tiny_teacher, tiny_swiftkv, architecture, tokens):
    for model in models(tiny_teacher, tiny_swiftkv, architecture):
        plain, quantized = (logits(model, tokens, kv_cache, (24,)) for kv_cache in ("auto", "fp8"))
        difference = (plain - quantized).norm() / plain.norm()
        # An error of the latent is one of the keys and the values of all heads.
        assert 1e-4 < difference < (0.2 if architecture == "deepseek_v2" else 0.1)
        assert torch.equal(plain, model(tokens, use_cache=False).logits)


def test_decoding_equals_the_full_forward(tiny_teacher, tiny_swiftkv, architecture, tokens):
    for model in models(tiny_teacher, tiny_swiftkv, architecture):
        model.double()  # float32 sums in another order would tip a few values to the next FP8 number
        model.set_experts_implementation("eager")  # torch's grouped product has no float64
        full = logits(model, tokens, "fp8", (24,))
        bound = 1e-5 if architecture == "deepseek_v2" else 1e-6  # its RoPE and router stay in float32
        torch.testing.assert_close(logits(model, tokens, "fp8", (7, 9, *[1] * 8)), full, rtol=bound, atol=bound)
