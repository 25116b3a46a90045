"""Checkpoints of every form load and answer as Hugging Face does: published ones, of several files, with tensors that nothing
uses; quantized as the published 8B-FP8 and, as the usual tools write them, in 4 bits."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.conftest import as_trained
from tests.published import CHECKPOINTS, TINY
from tests.published import write as write_files
from tests.quantized import FORMS, QUANTIZATION, quantize, write
from tests.serve.conftest import QWEN2, difference

from pipeline.engines.log import Unsupported, require_fp8_cache
from swiftkv.io import read_json, write_json
from swiftkv.models import load_base, rewire, save_model
from swiftkv.models.sharing import attach
from swiftkv.spec import SwiftKVSpec

pytestmark = pytest.mark.thorough

SMALL = {"num_hidden_layers": 4}
# vLLM's kernels for processors without AVX-512 have no product with 4 bits.
FOUR_BITS = list(FORMS) if torch.cpu._is_avx512_supported() else []
# How keys and values of a float8 cache are scaled before they are rounded, and the number format of the cache.
CALIBRATED = {"caches": "auto", "caches of 16 bits": "bfloat16"}
try:
    require_fp8_cache()
except Unsupported:  # vLLM has no such kernel for this processor
    CALIBRATED = {}


@pytest.fixture(scope="module")
def plain(checkpoint):
    """A checkpoint that holds what is used and nothing else."""
    return checkpoint("llama", 10, 4, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def folders(checkpoint, plain, tokenizer, tmp_path_factory):
    new = tmp_path_factory.mktemp("forms")
    # Some exporters write the tied head as well, and old ones the rotary embedding's table. Serving does not exit early.
    teacher = checkpoint("llama", 10, 4, keep_teacher_qkv=True, tie_word_embeddings=True)
    weights = load_file(teacher / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["early_exit_head_swiftkv.weight"] = torch.randn_like(weights["model.embed_tokens.weight"])
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    config = read_json(teacher / "config.json") | {"swiftkv_early_exit": True}
    made = {"superfluous tensors in several files": write_files(new / "superfluous", config, weights, files=3)}

    published = checkpoint("llama", 2, keep_teacher_qkv=True, **SMALL, **QWEN2)
    config = CHECKPOINTS["8B in 16 bits"] | {key: read_json(published / "config.json")[key] for key in TINY}
    weights = {name: tensor.bfloat16() for name, tensor in load_file(published / "model.safetensors").items()}
    made["published"] = write_files(new / "published", config, weights, files=3)

    qwen2 = checkpoint("qwen2", 1, 2, keep_teacher_qkv=True, random_bias=True, **SMALL)
    quantize(qwen2, new / "float8", new / "float8-plain")
    made["float8"] = new / "float8"
    # Distillation of an FP8 model saves its weights, and the new projections quantized with them.
    quantize(checkpoint("llama", None, **SMALL), new / "base", new / "base-plain")
    model = rewire(load_base(new / "base", torch.float32), SwiftKVSpec(4, 2, 2))
    save_model(model, new / "distilled", tokenizer=tokenizer)
    made["distilled in float8"] = new / "distilled"
    for name in FOUR_BITS:
        made[name] = new / name
        write(checkpoint("llama", 2, 2, **SMALL), made[name], new / f"{name}-plain", *FORMS[name])
    made |= dict.fromkeys(CALIBRATED, calibrated(new / "distilled", new / "calibrated"))
    for folder in (made["superfluous tensors in several files"], made["published"]):
        tokenizer.save_pretrained(folder)
    return made


BASES = {
    "tied": {"tie_word_embeddings": True},
    "in several files": {},
    "biased": {"architecture": "qwen2", "random_bias": True},
    "in float8": {},
}


@pytest.fixture(scope="module")
def forms(checkpoint, tokenizer, tmp_path_factory):
    """A trained model of each base as a whole checkpoint, linked to the base's files, and attached to them."""
    made = {}
    for name, changes in BASES.items():
        folder = tmp_path_factory.mktemp("sharing")
        base, new = checkpoint(layers=None, **SMALL, **changes), folder / "base"
        if name == "in several files":
            write_files(new, read_json(base / "config.json"), load_file(base / "model.safetensors"), files=3)
            tokenizer.save_pretrained(new)
        elif name == "in float8":
            quantize(base, new, folder / "plain")
        else:
            shutil.copytree(base, new)
        model = as_trained(rewire(load_base(new, torch.float32), SwiftKVSpec(4, 2, 2)))
        save_model(model, folder / "whole", tokenizer=tokenizer)
        save_model(model, folder / "linked", tokenizer=tokenizer, base=new)
        made |= {(name, form): folder / form for form in ("whole", "linked")}
        if name == "in several files":
            attach(new, folder / "linked", folder / "attached")
            made[name, "attached"] = folder / "attached"
    return made


def test_checkpoints_that_share_their_base_answer_as_whole_ones(engines, forms, eight):
    answers = engines({key: {"model": folder, "runs": [{"prompts": eight}]} for key, folder in forms.items()})
    for (name, form), answer in answers.items():
        assert answer["fast_prefill"] and answer["runs"] == answers[name, "whole"]["runs"], (name, form)
    next(forms["tied", "linked"].with_name("base").glob("*.safetensors")).unlink()
    case = {"gone": {"model": forms["tied", "linked"], "runs": []}}
    assert "of the base model that" in engines(case, refused=True)["gone"]["error"]


def calibrated(folder, to):
    """A copy with a scale for each layer's float8 cache, as llm-compressor writes it."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    for layer in range(4):
        weights |= {f"model.layers.{layer}.self_attn.{of}_scale": torch.tensor([0.5]) for of in "kv"}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    config = read_json(to / "config.json")
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    config["quantization_config"] = QUANTIZATION | {"kv_cache_scheme": scheme}
    write_json(to / "config.json", config)
    return to


@pytest.fixture(scope="module")
def answers(engines, folders, plain, prompts, eight):
    cases = {
        name: {"model": folder, "runs": [{"prompts": prompts, "max_tokens": 1}]} for name, folder in folders.items()
    }
    for name in ("superfluous tensors in several files", "published"):
        cases[name]["runs"] = [{"prompts": eight}]
    for name in FOUR_BITS:
        cases[name]["engine"] = {"dtype": "bfloat16"}  # what the kernels are made for
    for name, kind in CALIBRATED.items():
        cases[name]["engine"] = {"dtype": "bfloat16", "kv_cache_dtype": kind}
        cases[name]["runs"][0]["allowed_token_ids"] = [300]  # one token, the same for all
    cases["dummy"] = {"model": plain, "engine": {"load_format": "dummy"}, "runs": [{"prompts": eight[:1]}]}
    return engines(cases)


def test_superfluous_tensors_and_several_files_change_nothing(answers, compare, plain, eight):
    answer, dummy = answers["superfluous tensors in several files"], answers["dummy"]  # needs no file but config.json
    compare(plain, eight, answer["runs"][0])
    assert dummy["parameters"] == answer["parameters"] and len(dummy["runs"][0]["tokens"][0]) == 12


def test_a_published_checkpoint_is_served(answers, compare, folders, eight):
    assert answers["published"]["fast_prefill"]
    compare(folders["published"], eight, answers["published"]["runs"][0])


@pytest.mark.parametrize("name", ["float8", "distilled in float8"])
def test_float8_equals_the_same_arithmetic_in_huggingface(answers, folders, prompts, name):
    same = difference(answers[name], folders[name], prompts)
    # Equal, but where a value lies between two float8 numbers and rounds the other way, which later layers carry on.
    assert same.median() < 1e-4
    if name == "float8":  # activations are really rounded: without that, the difference is far larger
        assert difference(answers[name], folders[name].with_name("float8-plain"), prompts).mean() > 10 * same.mean()
        assert "model.caches.kv_proj_swiftkv.weight_scale" in answers[name]["parameters"]


@pytest.mark.parametrize("name", FOUR_BITS)
def test_weights_are_what_they_stand_for(answers, folders, checkpoint, prompts, name):
    # Up to the rounding of bfloat16, which is much finer than that to 4 bits.
    unrounded = difference(answers[name], checkpoint("llama", 2, 2, **SMALL), prompts)
    rounded = difference(answers[name], folders[name].with_name(f"{name}-plain"), prompts)
    assert rounded.mean() < unrounded.mean() / 4


@pytest.mark.skipif(not CALIBRATED, reason="vLLM has no FP8 cache on this processor")
def test_layers_read_a_cache_with_the_scales_it_was_written_with(answers):
    """Rounding moves log-probabilities by about a quarter of their spread, reading with another scale by more than all of it."""
    rounded, exact = (torch.tensor(answers[name]["runs"][0]["logprobs"]) for name in CALIBRATED)
    assert 0 < (rounded - exact).abs().mean() < exact.std() / 2
