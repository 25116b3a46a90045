"""What is served and how: a model and its variant, a point's settings, and vLLM's arguments and environment."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pipeline.config.points import PointSettings
from pipeline.measure.memory import BYTES, Budget, cpu_budget, gpu_budget
from pipeline.measure.process import offline_environment
from pipeline.records import installed_version
from swiftkv.cost import Dimensions
from swiftkv.errors import UserError
from swiftkv.io import read_json
from swiftkv.spec import SwiftKVSpec

if TYPE_CHECKING:
    from pipeline.measure.turns import Run

BASELINE = "baseline"
REFERENCE = "arctic-inference"  # the authors' vLLM plugin
REFERENCE_NEEDS = {REFERENCE: "0.3.0", "vllm": "0.26.0"}
SLACK = 64  # tokens: a server may count a little more than a prompt's length


@dataclass(frozen=True)
class Subject:
    """A model and its variant.

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

    def check_reference(self) -> None:
        """Make sure that this environment can serve the variant with the reference plugin, before an engine starts.

        Raises:
            UserError: the plugin is not installed, vLLM is not the version it was made for, or it cannot serve the variant.
        """
        for distribution, wanted in REFERENCE_NEEDS.items():
            installed = installed_version(distribution)
            if installed is None or installed.partition("+")[0] != wanted:
                needs = " and ".join(f"{name} {version}" for name, version in REFERENCE_NEEDS.items())
                present = f"{distribution} {installed}" if installed else f"no {distribution}"
                raise UserError(
                    f"variant {self.variant!r} is served by the reference plugin, which needs {needs}, but this Python "
                    f"environment has {present}"
                )
        if self.spec is None or self.spec.key_value_group_size > 1:
            raise UserError(
                f"variant {self.variant!r}: the reference plugin serves SwiftKV without AcrossKV, and nothing else"
            )


Settings = TypeVar("Settings", bound=PointSettings)


@dataclass(frozen=True)
class Point(Generic[Settings]):
    """A serving point on the machine at hand; a subclass for each kind of measurement.

    Attributes:
        name: key under serving.points.
        settings: that entry, with the output tokens filled in.
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
    """

    name: str
    settings: Settings
    engine: dict[str, Any]
    seed: int
    gpus: int
    threads: int
    start_timeout: float = 600
    in_turns: bool = False

    alone: ClassVar[bool] = False
    server: ClassVar[bool] = False
    single: ClassVar[bool] = False

    @property
    def lengths(self) -> tuple[int, int]:
        """Prompt and output tokens of the longest request."""
        return self.settings.input_tokens, self.settings.output_tokens

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings in a record that only points of this kind have."""
        raise NotImplementedError

    def numbers(self, run: Run) -> dict[str, Any]:
        """Measure, and return the record's `result`.

        Raises:
            EngineFailure: vLLM failed.
        """
        raise NotImplementedError

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        """Print the main number of a result."""
        raise NotImplementedError

    def seen(self, result: dict[str, Any]) -> tuple[int, int]:
        """Prompt and output tokens of the requests as they came, for the costs."""
        return self.lengths

    def chosen(self, *names: str) -> dict[str, Any]:
        """Some of the settings, by name."""
        return {name: getattr(self.settings, name) for name in names}

    def repeats(self, variant: str) -> int:
        """How often the point is measured; half as often for a baseline that variants measure again, in turns with it."""
        return math.ceil(self.settings.repeats / (2 if self.in_turns and variant == BASELINE else 1))

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

    @property
    def speculation(self) -> dict[str, Any] | None:
        """vLLM's --speculative-config, for the points that may have one."""
        speculative = getattr(self.settings, "speculative", None)
        return speculative and speculative.model_dump(exclude_unset=True)

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

    def max_model_len(self, config: dict[str, Any]) -> int:
        """Longest sequence vLLM has to be ready for: prompt, output and slack, rounded up to 128 tokens.

        Raises:
            UserError: the model has fewer positions than prompt and output need.
        """
        (prompt, output), positions = self.lengths, config.get("max_position_embeddings") or math.inf
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
        (architecture,) = subject.config["architectures"]
        merged = architecture.replace("ForCausalLM", "MergeAllLayersForCausalLM")
        arguments["--hf-overrides"] = json.dumps({"architectures": [merged]})
    if speculative := point.speculation:
        arguments["--speculative-config"] = json.dumps(speculative)
    command = [str(text) for pair in arguments.items() for text in pair]
    command += ["--enable-chunked-prefill", "--no-enable-prefix-caching"]  # the paper mentions no prefix caching
    if engine["enforce_eager"]:
        command.append("--enforce-eager")
    return command


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


def printable(command: Sequence[str], model: Path) -> list[str]:
    """A command as a record keeps it: without this machine's paths."""
    return [Path(command[0]).name, *(text.replace(str(model), "MODEL") for text in command[1:])]  # vllm or python
