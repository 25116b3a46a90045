"""Models, prompts, packed rows and engines of the GPU checks, by the sizes of the device."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from swiftkv.device import compute_device, compute_dtype
from swiftkv.distill.packing import PackedRows, Sample, pack, write_packed
from swiftkv.distill.recipe import Recipe
from swiftkv.io import read_json, write_json
from swiftkv.models import load_any, rewire, save_swiftkv
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).resolve().parents[1]
ENGINE_PROGRAM = Path(__file__).with_name("gpu_engine.py")
# nat between the two likeliest tokens. bfloat16 moved log-probabilities by 0.046 at most on an H200, so it cannot turn a choice
# that two such differences do not reach.
MARGIN = 0.1
# Of a check: whether it passed, a line that says why, and its numbers.
Outcome = tuple[bool, str, dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """What the checks run.

    Attributes:
        small: configuration of the model whose answers are compared.
        large: of the model that is timed.
        product: rows of the square product.
        copied: bytes of the copy.
        lengths: tokens of prompts whose answers are compared.
        batches: prompt tokens -> requests with `output` tokens out; of prompts alone half of them.
        prompts: tokens of a forward pass -> how often all variants are timed forth and back.
        output: tokens of an answer.
        decode: batch sizes.
        turns: how often each point of speed is measured with both models.
        threads: of an engine on a processor.
        row: tokens of a packed row of the timed training; `short` of those that two kernels are compared on.
        steps: timed optimizer steps.
        tokens: of the trainings of SmolLM2, the longest first; `rows` are those of a step.
        graphs: whether engines compile and capture CUDA graphs, where a check does not need them eager.
    """

    small: dict[str, Any]
    large: dict[str, Any]
    product: int
    copied: int
    lengths: tuple[int, ...]
    batches: dict[int, int]
    prompts: dict[int, int]
    output: int
    decode: list[int]
    turns: int
    threads: int
    row: int
    short: int
    steps: int
    tokens: tuple[int, ...]
    rows: int
    graphs: bool


def _llama(
    hidden: int, inner: int, layers: int, heads: int, groups: int, vocabulary: int, **other: Any
) -> dict[str, Any]:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
            "vocab_size": vocabulary, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "tie_word_embeddings": False,
            **other}  # fmt: skip


GPU = Sizes(
    small=_llama(2048, 5632, 20, 16, 4, 32_000),  # about 1B, heads of 128
    large=_llama(4096, 14_336, 32, 32, 8, 128_256),
    product=8192,
    copied=2**32,
    lengths=(40, 200, 300, 450, 700, 90, 512, 256),
    batches={2000: 100, 16_000: 14},
    prompts={2048: 4, 4096: 4, 8192: 3, 16_384: 2, 32_768: 2, 65_536: 1},
    output=256,
    decode=[1, 8, 64],
    turns=2,
    threads=1,
    row=8192,
    short=1024,
    steps=6,
    tokens=(20_000_000, 5_000_000),
    rows=16,  # of 512 tokens: as many tokens as a row of the paper's
    graphs=True,
)
TINY = Sizes(
    small=_llama(128, 256, 20, 4, 2, 4096, head_dim=32),
    large=_llama(128, 256, 8, 4, 2, 4096, head_dim=32),
    product=256,
    copied=2**22,
    lengths=(40, 200, 90, 130),
    batches={256: 2},
    prompts={64: 1, 128: 1},
    output=8,
    decode=[1, 2],
    turns=2,
    threads=1,
    row=128,
    short=64,
    steps=2,
    tokens=(4000, 2500),
    rows=2,
    graphs=False,
)

# Speed of the shape of SmolLM2-135M on two cores; nothing else may run meanwhile.
PROCESSOR = replace(
    TINY,
    large=_llama(576, 1536, 30, 9, 3, 49_152, tie_word_embeddings=True),
    batches={512: 16, 2000: 4},
    output=16,
    decode=[1, 8],
    turns=4,
    threads=2,
    graphs=True,
)
SIZES = {"gpu": GPU, "processor": PROCESSOR, "tiny": TINY}


def half(config: dict[str, Any]) -> SwiftKVSpec:
    """Return SwiftKV with l = L / 2."""
    return SwiftKVSpec(config["num_hidden_layers"], config["num_hidden_layers"] // 2)


def make_recipe(length: int) -> Recipe:
    """Return the paper's recipe with rows of `length` tokens, four a step."""
    settings = yaml.safe_load((ROOT / "config.yaml").read_text())["recipes"]["distillation"]
    settings |= {"batch_size": 4, "micro_batch_size": 1, "max_length": length, "zero_stage": 2, "epochs": 1,
                 "teacher_states": "online", "checkpoint_every": 2}  # fmt: skip
    return Recipe.from_dict(settings).on_this_device()


def make_rows(path: Path, length: int, vocabulary: int, count: int) -> PackedRows:
    """Write and open `count` packed rows of random samples."""
    random = np.random.default_rng(0)
    sizes = np.clip(random.lognormal(np.log(length / 8), 0.5, 16 * count), 8, length).astype(int)
    samples = [Sample(random.integers(3, vocabulary, size).astype(np.int32), np.ones(size, np.uint8)) for size in sizes]
    write_packed(path, *pack(samples, length, 0, 0, count))
    return PackedRows(path)


def random_model(config: dict[str, Any]) -> LlamaForCausalLM:
    """Return a random model in the device's number format; its logits have a standard deviation of about 1."""
    torch.manual_seed(0)
    with torch.device(compute_device()):
        model = LlamaForCausalLM._from_config(LlamaConfig(**config), dtype=compute_dtype())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model.eval()


def make_model(folder: Path, config: dict[str, Any], spec: SwiftKVSpec | None) -> Path:
    """Write a random checkpoint, rewired if `spec` is given, with trained parameters away from the teacher's."""
    model = random_model(config)
    if spec is None:
        model.save_pretrained(folder)
        words(folder, config["vocab_size"])
        return folder
    student = rewire(model, spec)
    with torch.no_grad():
        for parameter in student.swiftkv_parameters().values():
            parameter.add_(0.3 * parameter.float().std().nan_to_num(1.0) * torch.randn_like(parameter))
    save_swiftkv(student, folder, keep_teacher_qkv=False)
    return folder


def words(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer of numbered words, with a chat template."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({f"w{number}": number for number in range(vocabulary)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)


def make_prompts(sizes: Sizes, lengths: tuple[int, ...] | None = None) -> list[list[int]]:
    """Return random prompts."""
    random = np.random.default_rng(1)
    return [random.integers(3, sizes.small["vocab_size"], length).tolist() for length in lengths or sizes.lengths]


def case(model: Path, prompts: list[list[int]], settings: dict[str, Any], *, steps: bool = False) -> dict[str, Any]:
    """Return a case of `gpu_engine.py` in the device's number format."""
    engine = {"dtype": str(compute_dtype()).removeprefix("torch."), "seed": 0} | settings
    if torch.cuda.is_available():
        engine["gpu_memory_utilization"] = 0.5
    return {"model": str(model), "prompts": prompts, "max_tokens": 8 if steps else 24, "steps": steps, "engine": engine}


def engines(folder: Path, cases: dict[str, dict[str, Any]], runner: str | None = None) -> dict[str, dict[str, Any]]:
    """Run cases in one process of their own; `runner` is vLLM's second model runner, "1", or its first, "0"."""
    write_json(folder / "cases.json", list(cases.values()))
    environment = os.environ | ({} if runner is None else {"VLLM_USE_V2_MODEL_RUNNER": runner})
    command = [sys.executable, str(ENGINE_PROGRAM), str(folder / "cases.json"), str(folder / "answers.json")]
    subprocess.run(command, env=environment, check=True)
    return dict(zip(cases, read_json(folder / "answers.json"), strict=True))


class Reference:
    """Hugging Face's model in float32, every position at full depth."""

    def __init__(self, folder: Path, prompts: list[list[int]]) -> None:
        self.model, self.prompts = load_any(folder, torch.float32).to(compute_device()), prompts

    @torch.no_grad()
    def compare(self, answer: dict[str, Any]) -> dict[str, float]:
        """Compare an engine's answer.

        Returns:
            tokens: how many differ where the margin is above `MARGIN`; `sure`, how many there are.
            largest, rms: difference of the log-probability of a given token, in nats.
        """
        differing, certain, differences = 0, 0, []
        for prompt, tokens, logprobs in zip(self.prompts, answer["tokens"], answer["logprobs"], strict=True):
            ids = torch.tensor([prompt + tokens[:-1]], device=self.model.device)
            expected = self.model(ids, logits_to_keep=len(tokens)).logits[0].float().log_softmax(-1).cpu()
            best, given = expected.topk(2), torch.tensor(tokens)
            sure = best.values[:, 0] - best.values[:, 1] > MARGIN
            certain += int(sure.sum())
            differing += int((sure & (best.indices[:, 0] != given)).sum())
            differences.append(expected.gather(1, given[:, None])[:, 0] - torch.tensor(logprobs))
        apart = torch.cat(differences).abs()
        return {
            "tokens": differing,
            "sure": certain,
            "largest": float(apart.max()),
            "rms": float(apart.square().mean().sqrt()),
        }
