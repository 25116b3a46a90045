"""Tiny weights in the form of the published checkpoints: their configuration, names, dtypes, and several files."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.published import CHECKPOINTS, TINY, tensors, write
from tests.quantized import quantize
from tests.serve.conftest import QWEN2, reference

from swiftkv.models import load_any

pytestmark = pytest.mark.thorough

EIGHT_BIT = [name for name, published in CHECKPOINTS.items() if "quantization_config" in published.config]


@pytest.fixture(scope="module")
def folders(checkpoint, tokenizer, tmp_path_factory):
    new = tmp_path_factory.mktemp("published")
    plain = checkpoint("llama", 2, keep_teacher_qkv=True, num_hidden_layers=4, **QWEN2)
    quantize(plain, new / "float8", new / "unused")
    own = json.loads((plain / "config.json").read_text())
    made = {}
    for name, published in CHECKPOINTS.items():
        config = published.config | {key: own[key] for key in TINY}
        weights = load_file((new / "float8" if name in EIGHT_BIT else plain) / "model.safetensors")
        form = tensors(config, published.dtype)
        assert {key: tensor.shape for key, tensor in weights.items()} == {key: t.shape for key, t in form.items()}
        made[name] = write(
            new / name, config, {key: tensor.to(form[key].dtype) for key, tensor in weights.items()}, files=3
        )
        tokenizer.save_pretrained(made[name])
    return made


@pytest.fixture(scope="module")
def ends(prompts):
    """Short ones for FP8: of few activations hardly any lies so near the middle of two numbers that it may round to either."""
    return [prompt[-24:] for prompt in prompts]


@pytest.fixture(scope="module")
def answers(engines, folders, prompts, ends):
    runs = [{"prompts": ends, "max_tokens": 1} if name in EIGHT_BIT else {"prompts": prompts} for name in folders]
    cases = [{"model": folder, "runs": [run]} for folder, run in zip(folders.values(), runs, strict=True)]
    return dict(zip(folders, engines(cases), strict=True))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_it_is_served_as_huggingface_answers(answers, compare, folders, prompts, ends, name):
    answer = answers[name]
    assert "error" not in answer, answer
    assert answer["fast_prefill"]
    (run,) = answer["runs"]
    if name not in EIGHT_BIT:
        return compare(folders[name], prompts, run)
    model = load_any(folders[name], torch.float32)
    pairs = zip(ends, run["tokens"], strict=True)
    expected = torch.stack([reference(model, prompt, tokens)[2] for prompt, tokens in pairs])
    assert (expected - torch.tensor(run["logprobs"])).abs().median() < 1e-4
