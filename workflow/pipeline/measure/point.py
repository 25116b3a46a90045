"""A serving point on the machine at hand, and vLLM's arguments."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pipeline.engines.log import OutOfMemory, Unsupported
from pipeline.engines.worker import module
from pipeline.measure.subject import BASELINE, Subject
from pipeline.measure.turns import Run
from swiftkv.cost import GIBI, parameter_count
from swiftkv.errors import UserError

CACHE_BYTES, GPU_SHARE = "--kv-cache-memory-bytes", "--gpu-memory-utilization"  # vLLM arguments
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SLACK = 64  # tokens: a server may count a little more than a prompt's length


class InstalledGpu(NamedTuple):
    """A GPU and the bytes of its memory."""

    name: str
    total: int


def installed_gpus() -> list[InstalledGpu]:
    """Return the GPUs of this machine, from another process, so that this one holds no GPU memory while vLLM runs."""
    question = (
        "import json; from torch.cuda import device_count, get_device_name, mem_get_info; "
        "print(json.dumps([[get_device_name(gpu), mem_get_info(gpu)[1]] for gpu in range(device_count())]))"
    )
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, encoding="utf-8")
    found = [InstalledGpu(*device) for device in json.loads(answer.stdout or "[]")]
    if not found:
        raise UserError("this point is served on GPUs, and torch finds none")
    return found


@dataclass(frozen=True)
class Point:
    """A serving point on the machine at hand; a subclass for each kind of measurement.

    Attributes:
        name: key under serving.points.
        settings: that entry, of the class in `pipeline.config.points`, with the output tokens filled in.
        engine: the engine settings, the same for every variant, with those of the point.
        seed: of prompts and arrivals.
        gpus: GPUs the model is spread over (tensor parallel); 0 serves on the processor.
        threads: processor threads.
        start_timeout: seconds a server may take until it answers.
        in_turns: whether a variant is measured in turns with the baseline.
        alone: it times single requests or steps, so on a cluster no other job may run on its node. Those wait for the
            processor, whose memory and clock a neighbor shares; a full batch waits for the GPU, which is its own.
        server: it asks a server, others an engine.
        single: on one device the engine is in the program's own process, so that nothing stands between.
        headline_format: format of the headline, with names of the result.
    """

    name: str
    settings: Any
    engine: dict[str, Any]
    seed: int
    gpus: int
    threads: int
    start_timeout: float = 600
    in_turns: bool = False

    alone: ClassVar[bool] = False
    server: ClassVar[bool] = False
    single: ClassVar[bool] = False
    headline_format: ClassVar[str]

    @property
    def lengths(self) -> tuple[int, int]:
        """Prompt and output tokens of the longest request."""
        return self.settings.input_tokens, self.settings.output_tokens

    @property
    def recorded(self) -> dict[str, Any]:
        """Return further settings for the record, beside the point's own."""
        return {"prompts": "token ids"}

    def numbers(self, run: Run) -> dict[str, Any]:
        """Measure, and return the record's `result`.

        Raises:
            EngineFailure: vLLM failed.
        """
        raise NotImplementedError

    @classmethod
    def headline(cls, result: dict[str, Any]) -> str:
        """The main number of a result."""
        return cls.headline_format.format(**result)

    def seen(self, result: dict[str, Any]) -> tuple[int, int]:
        """Prompt and output tokens of the requests as they came, for the costs."""
        return self.lengths

    def repeats(self, variant: str) -> int:
        """Return how often the point is measured; half as often for a baseline, which variants measure again in turns with it."""
        return math.ceil(self.settings.repeats / (2 if self.in_turns and variant == BASELINE else 1))

    @property
    def dtype(self) -> str:
        """Number format of weights and activations; with `auto` that of this machine."""
        from swiftkv.device import dtype_name  # imports torch

        return dtype_name(self.engine["dtype"], "cuda" if self.gpus else "cpu")

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks the model is split over."""
        return max(1, self.gpus)

    @property
    def speculation(self) -> dict[str, Any] | None:
        """vLLM's --speculative-config, for the points that may have one."""
        speculative = getattr(self.settings, "speculative", None)
        return speculative and speculative.model_dump(exclude_unset=True)

    @property
    def async_scheduling(self) -> bool | None:
        """Return True if vLLM schedules asynchronously; None leaves it to vLLM, which never does on processors."""
        return getattr(self.settings, "async_scheduling", None) if self.gpus else None

    def memory(self, subject: Subject) -> dict[str, Any]:
        """The vLLM argument that sets the memory; on a GPU with a limit it takes seconds to find.

        On a GPU vLLM gets a share of the device for weights, activations and cache, and of a limit no more than that share.
        On a processor the cache gets what weights leave of a limit; a server does not load the teacher's unused projections.
        Both are stated for 16-bit numbers: a processor that has none gives the cache as many more bytes, and so as many tokens.

        Raises:
            OutOfMemory: the weights alone exceed the stated limit.
        """
        limit, share = self.settings.memory_gib, self.engine["gpu_memory_utilization"]
        if self.gpus:
            if limit is not None:  # not rounded up: the limit is one
                share = min(share, int(limit * GIBI / installed_gpus()[0].total * 10_000) / 10_000)
            return {GPU_SHARE: share}
        stated = "bfloat16" if self.engine["dtype"] == "auto" else self.dtype
        if limit is None:
            if self.engine["cpu_kv_cache_gib"] is None:
                raise UserError("serving on a processor needs serving.engine.cpu_kv_cache_gib")
            size = int(self.engine["cpu_kv_cache_gib"] * GIBI)
        else:
            weights = parameter_count(subject.config, subject.spec) * BYTES[stated]
            size = int(limit * GIBI) - weights
            if size <= 0:
                raise OutOfMemory(f"the weights take {weights / GIBI:.3f} GiB of the {limit:g} GiB there are")
        return {CACHE_BYTES: size * (BYTES[self.dtype] // BYTES[stated] if subject.kv_cache == "auto" else 1)}

    def max_model_len(self, config: dict[str, Any]) -> int:
        """Longest sequence vLLM has to be ready for: prompt, output and slack, rounded up to 128 tokens.

        Raises:
            Unsupported: the model has fewer positions than prompt and output need.
        """
        (prompt, output), positions = self.lengths, config.get("max_position_embeddings") or math.inf
        if prompt + output > positions:
            raise Unsupported(
                f"a prompt of {prompt} and an output of {output} tokens need {prompt + output} positions, "
                f"but the model has {positions}"
            )
        return int(min(positions, math.ceil((prompt + output + SLACK) / 128) * 128))


def vllm_command(subject: Subject, point: Point, length: int, memory: dict[str, Any]) -> list[str]:
    """The command that starts vLLM, of a server without host, port and name.

    Args:
        length: longest sequence, in tokens.
        memory: from `Point.memory`.
    """
    engine = point.engine
    arguments = {
        "--dtype": point.dtype,
        "--seed": point.seed,
        "--max-model-len": length,
        "--max-num-batched-tokens": engine["max_num_batched_tokens"],
        "--max-num-seqs": engine["max_num_seqs"],
        "--tensor-parallel-size": point.tensor_parallel_size,
        "--kv-cache-dtype": subject.kv_cache,
        "--generation-config": "vllm",  # requests decide on length and sampling, not the model's generation_config.json
        **memory,
    }
    if subject.weights == "dummy":
        arguments["--load-format"] = "dummy"
    if subject.quantization:
        arguments["--quantization"] = subject.quantization
    if subject.merge_all_layers:
        (architecture,) = subject.config["architectures"]
        merged = architecture.replace("ForCausalLM", "MergeAllLayersForCausalLM")
        arguments["--hf-overrides"] = json.dumps({"architectures": [merged]})
    if speculative := point.speculation:
        arguments["--speculative-config"] = json.dumps(speculative)
    words = [str(text) for pair in arguments.items() for text in pair]
    words += ["--enable-chunked-prefill", "--no-enable-prefix-caching"]  # the paper mentions no prefix caching
    if engine["enforce_eager"]:
        words.append("--enforce-eager")
    if point.async_scheduling is not None:
        words.append("--async-scheduling" if point.async_scheduling else "--no-async-scheduling")
    if point.server:
        return module("vllm.entrypoints.cli.main", "serve", str(subject.folder), *words)
    return module("pipeline.measure.engine_program", "--model", str(subject.folder), "--skip-tokenizer-init", *words)


def printable(command: Sequence[str], model: Path) -> list[str]:
    """A command as a record keeps it: without this machine's paths."""
    return [Path(command[0]).name, *(text.replace(str(model), "MODEL") for text in command[1:])]  # vllm or python
