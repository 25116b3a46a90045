"""How one point is served: the settings every variant shares, and the vLLM arguments and environment they become."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftkv.dimensions import Dimensions
from swiftkv.errors import UserError
from swiftkv.measure.memory import Budget, cpu_budget, gpu_budget
from swiftkv.measure.process import offline_environment, program
from swiftkv.measure.reference import REFERENCE
from swiftkv.records import read_json
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
        spec: fields of the `SwiftKVSpec`; None serves the model as it is.
        merge_all_layers: every layer computes its keys and values, one layer's are kept (Sec. 5.1).
        quantization: vLLM's --quantization, or None.
        plugin: "arctic-inference" for the authors' own vLLM plugin; None is this project's.
    """

    identity: dict[str, Any]
    variant: str
    kv_cache: str
    folder: Path
    weights: str
    spec: dict[str, int | None] | None = None
    merge_all_layers: bool = False
    quantization: str | None = None
    plugin: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        return read_json(self.folder / "config.json")

    @property
    def architecture(self) -> Dimensions:
        """The dimensions of the model, for the cost model."""
        return Dimensions.from_config(self.config)

    @property
    def swiftkv_spec(self) -> SwiftKVSpec | None:
        """The spec as an object."""
        return None if self.spec is None else SwiftKVSpec(**self.spec)


@dataclass(frozen=True)
class Point:
    """One serving point on the machine at hand.

    Attributes:
        name: key under serving.points.
        values: that entry, with the output tokens, seed and engine settings of the serving section filled in.
        gpus: GPUs the model is spread over (tensor parallel); 0 serves on the processor.
        threads: processor threads.
        start_timeout: seconds a server may take until it answers.
    """

    name: str
    values: dict[str, Any]
    gpus: int
    threads: int
    start_timeout: float = 600

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an optional key."""
        return self.values.get(key, default)

    @property
    def engine(self) -> dict[str, Any]:
        """The engine settings, the same for every variant; a point may have its own of some."""
        own = {key: self.values[key] for key in ("enforce_eager", "prefix_caching") if key in self.values}
        return {"prefix_caching": False} | self.values["engine"] | own

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks the model is split over."""
        return max(1, self.gpus)

    def budget(self, subject: Subject) -> Budget:
        """The memory for the KV cache, as vLLM arguments and in words; on a GPU with a limit it takes seconds to say.

        Raises:
            OutOfMemory: the weights alone exceed the stated limit.
        """
        limit = self.get("memory_gib")
        if self.gpus:
            return gpu_budget(limit, self.engine["gpu_memory_utilization"])
        engine = self.engine
        return cpu_budget(limit, engine["cpu_kv_cache_gib"], subject.config, subject.swiftkv_spec, engine["dtype"])


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
        "--dtype": engine["dtype"],
        "--seed": point["seed"],
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
    if point.get("speculative"):
        arguments["--speculative-config"] = json.dumps(point["speculative"])
    command = [str(text) for pair in arguments.items() for text in pair]
    command += ["--enable-chunked-prefill", f"--{'' if engine['prefix_caching'] else 'no-'}enable-prefix-caching"]
    if engine["enforce_eager"]:
        command.append("--enforce-eager")
    return command


def vllm(*arguments: str) -> list[str]:
    """A `vllm ...` command line of this Python environment."""
    return [program("vllm"), *arguments]


def engine_environment(point: Point, plugin: str | None = None) -> dict[str, str]:
    """The environment vLLM is served in.

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
    if point.gpus:
        # It would be compiled at the first start, and decoding is greedy.
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        environment["OMP_NUM_THREADS"] = str(point.threads)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
        if point.tensor_parallel_size == 1:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine process is the worker: 10 s less to start
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
