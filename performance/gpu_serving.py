"""Serving on one GPU: SwiftKV against the unchanged model, Merge-all-Layers and the reference plugin, dummy weights.

Measured on the dimensions of Llama-3.1-8B:

* throughput (Sec. 5.1): all requests at once, outputs of 256 tokens, eager, chunked prefill of 2,048 tokens, as in the
  paper, but fewer prompts than its 15M tokens: `PROMPTS` makes one point take about 45 s on an H200 (`--scale`).
* decode: time per output token of batches of 1, 8 and 64, compiled, with CUDA graphs. Only steps in which the whole
  batch decodes count. Several samples; the median is used, all are kept.

One engine serves all points of its series. Every point becomes a JSON file FOLDER/<vLLM version>/<point>.json at once,
and is skipped when it exists, so the script can be run in pieces (`--limit-seconds`): no point is begun that would not
end in time. A point whose engine failed or had no memory is a file too; `--retry` measures such points again. The most
telling series come first. `--summary FOLDER` makes tables of ratios, only ever within one vLLM version and GPU.

Run it with the Python of the environment to measure. The reference plugin (arctic-inference 0.3.0) is one of the
series where it is installed beside the vLLM it was made for, 0.26.0. `gpu_prepare.sh` says how to make the environments.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_worker import Engine, tpot_ms, worker_command
from gpu_summary import summary

from swiftkv.cost import Architecture, request_flops
from swiftkv.errors import UserError, command_line
from swiftkv.measure.engine import EngineFailure, OutOfMemory, observed
from swiftkv.measure.point import max_model_len
from swiftkv.measure.process import offline_environment, terminates_cleanly
from swiftkv.records import read_json, write_json
from swiftkv.spec import SwiftKVSpec

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "resources/architectures/llama-3.1-8b.json"
OUTPUT = 256
# Input tokens -> requests: 1.16M, 0.90M, 1.06M and 0.38M tokens in all. The order is that of measuring.
PROMPTS = {2000: 512, 32_000: 28, 8000: 128, 128_000: 3}
BATCHES = (1, 8, 64)
DECODE_INPUT, DECODE_SAMPLES = 1000, 5
WARM_UP = 8000  # input tokens at most: several full steps, but not a second long prompt
REFERENCE = {"arctic-inference": "0.3.0", "vllm": "0.26.0"}
# Seconds, for the time limit: a generous guess until the engine has measured its first points.
START = {"throughput": 120, "decode": 240}
POINT = {"throughput": 90, "decode": 45}


@dataclasses.dataclass(frozen=True)
class Series:
    """The points of one engine.

    Attributes:
        kind: throughput or decode.
        variant: as in the project's configuration; "reference" is SwiftKV 50 % in the reference plugin.
        spec: l and g of the model; None is the unchanged one.
    """

    kind: str
    variant: str
    spec: SwiftKVSpec | None = None
    kv_cache: str = "auto"
    merge_all_layers: bool = False

    @property
    def name(self) -> str:
        """As in file names and `--only`."""
        return f"{self.kind}-{self.variant}" + ("" if self.kv_cache == "auto" else f"-{self.kv_cache}")

    @property
    def points(self) -> dict[str, int]:
        """Name of each point -> its input tokens (throughput) or its batch (decode)."""
        return {f"{self.name}-{size}": size for size in (PROMPTS if self.kind == "throughput" else BATCHES)}

    @property
    def environment(self) -> dict[str, str]:
        """What chooses the plugin; the unchanged model runs without any."""
        # FlashInfer's sampler would be compiled at the first start; greedy sampling never calls it.
        common = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
        if self.variant == "reference":
            return common | {"VLLM_PLUGINS": "arctic_inference", "ARCTIC_INFERENCE_ENABLED": "1"}
        plugin = "swiftkv" if self.spec or self.merge_all_layers else ""
        return common | {"VLLM_PLUGINS": plugin, "ARCTIC_INFERENCE_ENABLED": "0"}

    def config(self) -> dict[str, Any]:
        """config.json, in the published format."""
        config = read_json(MODEL)["config"] | {"dtype": "bfloat16", "bos_token_id": 128_000, "eos_token_id": 128_001}
        if self.merge_all_layers:
            config["architectures"] = ["LlamaMergeAllLayersForCausalLM"]
        if self.spec is not None:
            config |= {
                "model_type": "llama_swiftkv",
                "architectures": ["LlamaSwiftKVForCausalLM"],
                "swiftkv": True,
                "num_key_value_layers": self.spec.num_key_value_layers,
                "key_value_group_size": self.spec.key_value_group_size,
            }
        return config

    def arguments(self, model: str) -> dict[str, Any]:
        """Arguments of `vllm.LLM`; of two series of one kind they differ in model and KV dtype alone."""
        longest = max(PROMPTS) if self.kind == "throughput" else DECODE_INPUT
        arguments = {
            "model": model,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "seed": 0,
            "kv_cache_dtype": self.kv_cache,
            "max_model_len": max_model_len(self.config(), longest, OUTPUT),
            "max_num_batched_tokens": 2048,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.9,
            "enforce_eager": self.kind == "throughput",
        }
        # Fewer graphs to capture at the start, and the largest batch still has one.
        return arguments | ({} if self.kind == "throughput" else {"max_num_seqs": max(BATCHES)})

    def job(self, size: int, scale: float) -> dict[str, Any]:
        """The worker's job for the point of this input length or batch."""
        if self.kind == "throughput":
            prompts = max(1, round(PROMPTS[size] * scale))
            return {"kind": "throughput", "prompts": prompts, "input": size, "output": OUTPUT}
        return {"kind": "decode", "batch": size, "input": DECODE_INPUT, "output": OUTPUT}


HALF, ACROSS4 = SwiftKVSpec(32, 16), SwiftKVSpec(32, 16, 4)
SERIES = (
    Series("throughput", "baseline"),
    Series("throughput", "swiftkv-50", HALF),
    Series("decode", "baseline"),
    Series("decode", "swiftkv-50", HALF),
    Series("decode", "reference", HALF),
    Series("throughput", "reference", HALF),
    Series("throughput", "swiftkv-50-across4", ACROSS4),
    Series("throughput", "swiftkv-50-across4", ACROSS4, kv_cache="fp8"),
    Series("decode", "swiftkv-50-across4", ACROSS4),
    Series("throughput", "merge-all-layers", merge_all_layers=True),
)


def versions() -> dict[str, str]:
    """Installed distributions that decide what is measured."""
    found = {}
    for name in ("vllm", "arctic-inference", "torch", "transformers", "flashinfer-python"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def todo(folder: Path, only: str, with_reference: bool) -> list[tuple[Series, dict[str, int]]]:
    """Series with the points that are not finished, in order; `folder` is that of one vLLM version."""
    wanted = []
    for series in SERIES:
        if not re.search(only, series.name) or (series.variant == "reference" and not with_reference):
            continue
        missing = {point: size for point, size in series.points.items() if not (folder / f"{point}.json").exists()}
        if missing:
            wanted.append((series, missing))
    return wanted


def gpu_state() -> list[str] | None:
    """Name, driver, clocks, temperature and power of the GPUs, as nvidia-smi prints them."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    try:
        run = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.splitlines()


def describe_machine() -> dict[str, Any]:
    """`records.provenance`, asked in another process: this one must hold no memory on the GPU."""
    program = "import json; from swiftkv.records import provenance; print(json.dumps(provenance(0)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if run.returncode:
        raise UserError(f"this Python environment cannot be described: {run.stderr.strip().splitlines()[-1]}")
    return json.loads(run.stdout.splitlines()[-1])


class Clock:
    """Time left of `--limit-seconds`; without a limit there is always enough."""

    def __init__(self, limit: float | None) -> None:
        self.end = None if limit is None else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds, or None."""
        return None if self.end is None else self.end - time.monotonic()

    def enough(self, seconds: float) -> bool:
        """Whether something that takes so long may begin."""
        return self.end is None or self.left() >= seconds


def measure_series(
    series: Series,
    points: dict[str, int],
    folder: Path,
    options: argparse.Namespace,
    clock: Clock,
    machine: dict[str, Any],
) -> bool:
    """Start one engine, measure points and write their files; ends at the first that fails.

    Returns:
        False if the time is up.
    """
    begin, longest = time.monotonic(), point_seconds(series, options.scale)
    with tempfile.TemporaryDirectory() as scratch:
        model, log = Path(scratch) / "model", Path(scratch) / "vllm.log"
        write_json(model / "config.json", series.config())
        worker = Engine(series.arguments(str(model)), offline_environment() | series.environment, log)
        left = dict(points)

        def write(point: str, started: float, content: dict[str, Any]) -> None:
            made = record(series, left.pop(point), options.scale, worker)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            when = {"finished": now, "wall_seconds": round(time.monotonic() - started, 3)}
            write_json(folder / f"{point}.json", made | machine | when | content)

        try:
            worker.wait(clock.left())
            say(f"{series.name}: engine ready after {time.monotonic() - begin:.0f} s")
            for point, size in points.items():
                if not clock.enough(longest):
                    return False
                started, before = time.monotonic(), gpu_state()
                result = run_job(worker, series, size, options.scale, clock)
                write(point, started, {"result": result, "gpu_state": [before, gpu_state()]})
                say(f"{point}: {headline(result)}")
        except TimeoutError:
            return False
        except EngineFailure as error:
            status = "oom" if isinstance(error, OutOfMemory) else "failed"
            say(f"{series.name}: {status}: {error}")
            # The point that was being measured, or all if the engine never started.
            for point in list(left)[: 1 if worker.ready else None]:
                write(point, begin, {"status": status, "reason": str(error), "log": worker.text()[-20_000:]})
        finally:
            worker.stop()
    return True


def point_seconds(series: Series, scale: float) -> float:
    """A generous guess of a point's time."""
    return POINT[series.kind] * (max(1.0, scale) if series.kind == "throughput" else 1.0)


def run_job(worker: Engine, series: Series, size: int, scale: float, clock: Clock) -> dict[str, Any]:
    """The numbers of one point, after a warm-up."""
    job = series.job(size, scale)
    if series.kind == "throughput":
        worker.ask(job | {"prompts": 1, "input": min(size, WARM_UP), "output": 8}, clock.left())
        answer = worker.ask(job, clock.left())
        return answer | {"tokens_per_second": answer["tokens"] / answer["seconds"]}
    worker.ask(job, clock.left())
    answers = [worker.ask(job, clock.left()) for _ in range(DECODE_SAMPLES)]
    samples = [tpot_ms(answer) for answer in answers]
    return {"tpot_ms": statistics.median(samples), "samples_ms": samples, "steps": [a["steps"] for a in answers]}


def record(series: Series, size: int, scale: float, worker: Engine) -> dict[str, Any]:
    """Everything known about a point but its numbers."""
    job = series.job(size, scale)
    arch = Architecture.from_config(read_json(MODEL)["config"])
    flops = {
        side: sum(request_flops(arch, spec, job["input"], job["output"]).values())
        for side, spec in (("baseline", None), ("variant", series.spec))
    }
    settings = {name: value for name, value in series.arguments("MODEL").items() if name != "model"}
    requests = job.get("prompts", job.get("batch"))
    return {
        "measure": series.kind,
        "size": size,
        "variant": series.variant,
        "kv_cache": series.kv_cache,
        "model": "Llama-3.1-8B-Instruct",
        "weights": "dummy",
        "spec": None if series.spec is None else vars(series.spec),
        "merge_all_layers": series.merge_all_layers,
        "status": "ok",
        "reason": None,
        "settings": settings | {"job": job, "total_tokens": requests * (job["input"] + job["output"])},
        "environment": series.environment,
        "start": worker.ready,
        "engine": observed(worker.text(), kv_cache_dtype=series.kv_cache, swiftkv=series.spec is not None),
        "versions": versions(),
        "cost": {
            "baseline_flops_per_token": flops["baseline"] / (job["input"] + job["output"]),
            "request_speedup_limit": flops["baseline"] / flops["variant"],
        },
        "result": None,
    }


def headline(result: dict[str, Any]) -> str:
    """The main number in words."""
    if "tokens_per_second" in result:
        return f"{result['tokens_per_second']:.0f} tokens/s in {result['seconds']:.1f} s"
    return (
        f"{result['tpot_ms']:.3f} ms a token (from {min(result['samples_ms']):.3f} to {max(result['samples_ms']):.3f})"
    )


def say(text: str) -> None:
    print(text, flush=True)


def dry_run(options: argparse.Namespace) -> None:
    """Print every engine and point; neither a GPU nor vLLM is needed."""
    seconds = 0.0
    for series in SERIES:
        if not re.search(options.only, series.name):
            continue
        words = [f"{name}={value}" for name, value in series.environment.items()]
        say(f"\n# {series.name}" + (f" (needs {REFERENCE})" if series.variant == "reference" else ""))
        say(f"# config.json: {json.dumps(series.config())}")
        say(
            shlex.join(["env", *words, "python", *worker_command(series.arguments("MODEL"))[1:]]).replace(
                f"{ROOT}/", ""
            )
        )
        for point, size in series.points.items():
            job = series.job(size, options.scale)
            count = job.get("prompts", job.get("batch"))
            say(f"{point}: {count} requests, {count * (job['input'] + OUTPUT):,} tokens: {json.dumps(job)}")
        seconds += START[series.kind] + len(series.points) * point_seconds(series, options.scale)
    say(f"\n{seconds / 60:.0f} minutes at most, by the guesses that --limit-seconds goes by")


def measure(options: argparse.Namespace) -> None:
    """Measure what is missing, as far as the time allows."""
    installed = versions()
    if "vllm" not in installed:
        raise UserError("vLLM is not installed in this Python environment; gpu_prepare.sh says how to make one")
    with_reference = all(installed.get(name) == version for name, version in REFERENCE.items())
    if not with_reference:
        say(f"the reference plugin is left out: it needs {REFERENCE}, and this environment has {installed}")
    folder, clock = options.output / installed["vllm"], Clock(options.limit_seconds)
    machine = describe_machine()
    for file in folder.glob("*.json") if options.retry else []:
        if read_json(file)["status"] == "failed" and re.search(options.only, file.stem):
            file.unlink()
    for series, points in todo(folder, options.only, with_reference):
        while points:
            enough = clock.enough(START[series.kind] + point_seconds(series, options.scale))
            if not enough or not measure_series(series, points, folder, options, clock, machine):
                break
            # Points behind one that failed get an engine of their own.
            points = {point: size for point, size in points.items() if not (folder / f"{point}.json").exists()}
        if points:
            break
    missing = [point for _, points in todo(folder, options.only, with_reference) for point in points]
    say(
        f"{len(missing)} points left: {', '.join(missing)}; run again to go on"
        if missing
        else "all points are measured"
    )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/bench/gpu_serving"), help="folder of the points")
    parser.add_argument("--limit-seconds", type=float, help="end within this time; finished points stay")
    parser.add_argument("--only", default="", help="regular expression for names of series, as --dry-run prints them")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times the number of prompts of every throughput point"
    )
    parser.add_argument("--retry", action="store_true", help="measure points again whose engine failed")
    parser.add_argument("--dry-run", action="store_true", help="print every command and point")
    parser.add_argument("--summary", type=Path, metavar="FOLDER", help="print tables of ratios from a folder of points")
    options = parser.parse_args(words)
    if options.scale <= 0:
        raise UserError(f"--scale is {options.scale:g}, but must be positive")
    try:
        re.compile(options.only)
    except re.error as error:
        raise UserError(f"--only {options.only!r} is no regular expression: {error}") from None
    return options


@command_line
def main() -> None:
    options = parse()
    if options.summary is not None:
        print(summary(options.summary))
    elif options.dry_run:
        dry_run(options)
    else:
        with terminates_cleanly():
            measure(options)


if __name__ == "__main__":
    main()
