"""How one point is served: the settings every variant shares, and the vLLM arguments and environment they become."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipeline.config.points import POINTS, PointSettings
from pipeline.measure.memory import BYTES, Budget, cpu_budget, gpu_budget
from pipeline.measure.process import offline_environment, program
from pipeline.measure.reference import REFERENCE
from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.section import read
from swiftkv.spec import SwiftKVSpec

SLACK = 64  # tokens: a server may count a little more than a prompt's length


@dataclass(frozen=True)
class Subject:
    """What is served.

    Attributes:
        identity: the model as records name it: name, title, kind, id, revision, resolved.
        variant: as in the configuration.
        kv_cache: "auto" or "fp8".
        folder: the checkpoint; of dummy weights, a folder with config.json and tokenizer.
        weights: "trained", "original" or "dummy".
        spec: the rewiring; None serves the model as it is.
        merge_all_layers: every layer computes its keys and values, one layer's are kept (Sec. 5.1).
        quantization: vLLM's --quantization, or None.
        plugin: "arctic-inference" for the authors' own vLLM plugin; None is this project's.
        baseline: what it is measured in turns with, at points that ask for it; None where that is itself.
    """

    identity: dict[str, Any]
    variant: str
    kv_cache: str
    folder: Path
    weights: str
    spec: SwiftKVSpec | None = None
    merge_all_layers: bool = False
    quantization: str | None = None
    plugin: str | None = None
    baseline: Subject | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        return read_json(self.folder / "config.json")

    @property
    def architecture(self) -> Dimensions:
        """The dimensions of the model, for the cost model."""
        return Dimensions.from_config(self.config)


Settings = TypeVar("Settings", bound=PointSettings)


@dataclass(frozen=True)
class Point(Generic[Settings]):
    """One serving point on the machine at hand.

    Attributes:
        name: key under serving.points.
        settings: that entry, with the output tokens filled in.
        engine: the engine settings, the same for every variant, with what the point has of its own.
        seed: of prompts and arrivals.
        gpus: GPUs the model is spread over (tensor parallel); 0 serves on the processor.
        threads: processor threads.
        start_timeout: seconds a server may take until it answers.
        in_turns: whether a variant is measured in turns with the baseline.
    """

    name: str
    settings: Settings
    engine: dict[str, Any]
    seed: int
    gpus: int
    threads: int
    start_timeout: float = 600
    in_turns: bool = False

    @classmethod
    def read(cls, name: str, asked: dict[str, Any], **machine: Any) -> Point[Any]:
        """A point as `Config.point` gives it.

        Args:
            name: key under serving.points.
            asked: what it gives.
            machine: gpus, threads and start_timeout.

        Raises:
            UserError: `asked` is no point.
        """
        shared = ("engine", "seed", "in_turns")
        own = {key: value for key, value in asked.items() if key not in shared}
        settings = read(POINTS[own["measure"]], own, f"point {name!r}")
        engine = dict(asked["engine"])
        if settings.enforce_eager is not None:
            engine["enforce_eager"] = settings.enforce_eager
        return cls(name, settings, engine, asked["seed"], in_turns=asked.get("in_turns", False), **machine)

    @property
    def dtype(self) -> str:
        """Number format of weights and activations; with `auto` that of this machine, which imports torch."""
        if self.engine["dtype"] != "auto":
            return self.engine["dtype"]
        from swiftkv.device import dtype_name

        return dtype_name("auto", "cuda" if self.gpus else "cpu")

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks the model is split over."""
        return max(1, self.gpus)

    def budget(self, subject: Subject) -> Budget:
        """The memory for the KV cache, as vLLM arguments and in words; on a GPU with a limit it takes seconds to say.

        Raises:
            OutOfMemory: the weights alone exceed the stated limit.
        """
        limit = self.settings.memory_gib
        if self.gpus:
            return gpu_budget(limit, self.engine["gpu_memory_utilization"])
        stated = "bfloat16" if self.engine["dtype"] == "auto" else self.dtype
        wider = BYTES[self.dtype] // BYTES[stated] if subject.kv_cache == "auto" else 1
        return cpu_budget(limit, self.engine["cpu_kv_cache_gib"], subject.config, subject.spec, stated, wider)


def max_model_len(config: dict[str, Any], prompt: int, output: int) -> int:
    """Longest sequence vLLM has to be ready for: prompt, output and slack, rounded up to 128 tokens.

    Raises:
        UserError: the model has fewer positions than prompt and output need.
    """
    positions = config.get("max_position_embeddings") or math.inf
    if prompt + output > positions:
        raise UserError(
            f"a prompt of {prompt} and an output of {output} tokens need {prompt + output} positions, "
            f"but the model has {positions}"
        )
    return int(min(positions, math.ceil((prompt + output + SLACK) / 128) * 128))


def engine_arguments(subject: Subject, point: Point, length: int, budget: Budget) -> list[str]:
    """vLLM's engine arguments for one point; all but the model itself.

    Args:
        length: longest sequence, in tokens.
        budget: from `Point.budget`.
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
        **budget.arguments,
    }
    if subject.weights == "dummy":
        arguments["--load-format"] = "dummy"
    if subject.quantization:
        arguments["--quantization"] = subject.quantization
    if subject.merge_all_layers:
        arguments["--hf-overrides"] = json.dumps({"architectures": [_merged_architecture(subject)]})
    if speculative := speculation(point):
        arguments["--speculative-config"] = json.dumps(speculative)
    command = [str(text) for pair in arguments.items() for text in pair]
    command += ["--enable-chunked-prefill", "--no-enable-prefix-caching"]  # the paper mentions no prefix caching
    if engine["enforce_eager"]:
        command.append("--enforce-eager")
    return command


def speculation(point: Point) -> dict[str, Any] | None:
    """vLLM's --speculative-config, for the points that may have one."""
    speculative = getattr(point.settings, "speculative", None)
    return speculative and speculative.model_dump(exclude_unset=True)


def vllm(*arguments: str) -> list[str]:
    """A `vllm ...` command line of this Python environment."""
    return [program("vllm"), *arguments]


def engine_environment(gpus: int, threads: int, plugin: str | None = None) -> dict[str, str]:
    """The environment vLLM is served in on so many GPUs (0: the processor) and processor threads.

    Only one plugin is loaded: an installed reference plugin would change how every model runs. On a CPU, one process
    computes with all of the point's threads. vLLM by itself keeps a core free for each server process, which would leave
    one of two cores idle. And glibc keeps the memory of large activations: given back after each step, they cost a page
    fault every 4 KiB in the next, up to 40 % of a step in a virtual machine, by chance.

    Args:
        plugin: as in `Subject`.
    """
    # Else torch's gloo listens on whatever address the host's name has.
    environment = offline_environment() | {"GLOO_SOCKET_IFNAME": "lo"}
    if plugin == REFERENCE:
        environment |= {"VLLM_PLUGINS": "arctic_inference", "ARCTIC_INFERENCE_ENABLED": "1"}
    else:
        environment |= {"VLLM_PLUGINS": "swiftkv", "ARCTIC_INFERENCE_ENABLED": "0"}
    if gpus:
        # It would be compiled at the first start, and decoding is greedy.
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        environment["OMP_NUM_THREADS"] = str(threads)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
        # The engine process is the worker: 10 s less to start.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment


def printable(command: Sequence[str], replacements: dict[str, str]) -> list[str]:
    """A command as a record keeps it: without this machine's paths and ports."""
    shown = [Path(command[0]).name]  # vllm or python
    for text in command[1:]:
        for place, name in replacements.items():
            text = text.replace(place, name)
        shown.append(text)
    return shown


def _merged_architecture(subject: Subject) -> str:
    (architecture,) = subject.config["architectures"]
    return architecture.replace("ForCausalLM", "MergeAllLayersForCausalLM")
